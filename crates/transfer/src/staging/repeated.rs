//! Host memory that is staged again and again, and is registered with the driver once that would have paid.

use std::sync::Arc;

use transload_core::{MemoryKind, Place, RawBuffer, TransferMethod, TransferPath, events::report};
use transload_executor::{BlockingKey, Executor};

use crate::{
    TransferOptions,
    context::ManagerContext,
    methods::{Route, TransferRequest},
    planning::request::path_of,
};

/// The smallest copy, in bytes, for which registrations count.
pub(crate) const REGISTERED_FROM: u64 = 1 << 20;

/// Registers memory that is staged repeatedly. One at a time: a driver makes no two at once.
pub(crate) struct RepeatedStaging {
    context: Arc<ManagerContext>,
    executor: Executor,
    registering: BlockingKey,
}

impl RepeatedStaging {
    pub(crate) fn new(context: Arc<ManagerContext>, executor: Executor) -> Self {
        Self { context, executor, registering: BlockingKey::new(1) }
    }

    /// Counts a staged copy, and has the host's memory registered, on a thread of the executor, if copies from there by an engine
    /// would have saved the time by now. Until then, and if that fails, copies of it are staged.
    pub(crate) fn count(&self, route: &Route, request: &TransferRequest<'_>) {
        let (src, dst) = (request.src, request.dst);
        let bytes = src.len() as u64;
        if !self.context.registers || bytes < REGISTERED_FROM || !request.options.may_be_registered() {
            return;
        }
        let path = path_of(src, dst);
        let Some(near) = [src, dst].into_iter().find(|buffer| buffer.place().device.is_cpu()) else { return };
        let whole = near.allocation_len() as u64;
        let Some((slot, cost)) = near.registration_slot().zip(route.backend.registration_time(whole)) else {
            return;
        };
        let time = |path, method| {
            let table = self.context.costs.table();
            table.get(path, method).model.predict(bytes)
        };
        let staged = time(path, TransferMethod::HostStaged);
        let direct = time(pinned(path), TransferMethod::DirectCopy);
        if !slot.is_due((bytes, whole), staged.saturating_sub(direct), cost) {
            return;
        }
        let (memory, backend) = (near.downgrade(), Arc::clone(&route.backend));
        let _runs_on = self.executor.spawn_blocking(&self.registering, move || {
            let _attached = backend.attach_thread();
            let Some(buffer) = memory.upgrade() else { return };
            if let Err(error) = backend.register_until_freed(&buffer) {
                report::call_failed("memory that is copied repeatedly is staged", None, &error);
                report::emit_deferred();
            }
        });
    }
}

fn pinned(TransferPath { src, dst }: TransferPath) -> TransferPath {
    let as_pinned = |place: Place| {
        if place.device.is_cpu() { Place::new(place.device, MemoryKind::Pinned) } else { place }
    };
    TransferPath::new(as_pinned(src), as_pinned(dst))
}

/// Returns the path that a copy of at least [`REGISTERED_FROM`] bytes is planned for: that of pinned memory if the host's side is
/// registered for the other side's family, which to its copy engines is the same. A call of its own, so that shorter copies pay for a comparison only.
#[inline(never)]
pub(crate) fn registered_path(src: &RawBuffer, dst: &RawBuffer, options: &TransferOptions) -> TransferPath {
    let path = path_of(src, dst);
    let is_registered = match (path.src.device.is_cpu(), path.dst.device.is_cpu()) {
        (true, false) => src.is_registered_for(path.dst.device),
        (false, true) => dst.is_registered_for(path.src.device),
        _ => false,
    };
    if is_registered && options.may_be_registered() { pinned(path) } else { path }
}
