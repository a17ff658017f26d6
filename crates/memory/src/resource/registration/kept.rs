//! Registrations that last until the memory is freed, kept with the memory itself.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{Error, ErrorKind, KeptRegistration, RawBuffer, Result, events::report};
use transload_cuda_sys::Context;

use super::{
    RegistrationCache,
    entry_guard::EntryGuard,
    errors::{addresses, in_use, limit_exceeded, refused},
    table::{Plan, Request},
};
use crate::{
    allocation_counts::CountGuard,
    pinned_limit::Pinned,
    resource::host_registration::HostRegistration,
    storage::{Address, FreeThread},
};

/// CUDA registers memory for all devices.
const FAMILY: &str = "cuda";

/// What a cache registered until it is freed.
#[derive(Debug, Default)]
pub(super) struct KeptCounts {
    pub(super) registrations: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Its part in the counts, until it is dropped.
struct Counted(Arc<KeptCounts>, u64);

impl Counted {
    fn new(counts: &Arc<KeptCounts>, bytes: u64) -> Self {
        counts.registrations.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self(Arc::clone(counts), bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.registrations.fetch_sub(1, Ordering::Relaxed);
        self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A registration in the slot of a buffer's storage.
struct Kept {
    registration: HostRegistration,
    counted: CountGuard,
    of_cache: Counted,
    context: Context,
    free_thread: Arc<FreeThread>,
}

impl KeptRegistration for Kept {
    fn family(&self) -> &'static str {
        FAMILY
    }

    /// The driver waits for the device, so another thread ends it.
    fn end(self: Box<Self>, owner: Box<dyn Any + Send + Sync>) {
        let Self { mut registration, counted, of_cache: _counted, context, free_thread } = *self;
        if transload_core::mutant!("memory/kept-registration-ends-first") {
            drop(owner);
            return free_thread.free(context, Address::Registered(registration), counted);
        }
        registration.set_owner(owner);
        free_thread.free(context, Address::Registered(registration), counted);
    }
}

impl RegistrationCache {
    /// Registers the whole allocation of a buffer until it is freed, without a loan: the buffer stays pageable memory, and may be in use.
    /// Evicts nothing, and counts within the limit.
    ///
    /// # Errors
    /// `Unsupported` if the memory has no [slot](RawBuffer::registration_slot), or if the driver or the device cannot register it;
    /// `Busy` if part of it is registered already, or just now; `OutOfMemory` with the numbers if the limit is reached; the
    /// driver's.
    pub fn register_until_freed(&self, buffer: &RawBuffer) -> Result<()> {
        let storage = buffer.storage();
        let address = storage.and_then(|storage| storage.host_address()).filter(|_| self.can_register);
        let Some((slot, address)) = buffer.registration_slot().zip(address) else {
            let text =
                format!("{} memory of this owner cannot be registered until it is freed", buffer.place());
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let bytes = buffer.allocation_len();
        let range = addresses(address, bytes)?;
        let alloc = self.manager.alloc_context();
        let request = Request { range: range.clone(), writable: true };
        let mut state = self.state.lock();
        if slot.is_registered() {
            return Err(in_use(&range));
        }
        state.note_kept(&self.kept);
        let (held, limit) = (state.table.bytes().saturating_add(self.kept_bytes()), state.table.limit());
        if held.saturating_add(bytes as u64) > limit {
            return Err(limit_exceeded(&range, held, limit));
        }
        let planned = state.table.plan(&request, &[]);
        drop(state);
        match planned {
            Plan::Register => {}
            Plan::Evict { joined, others } => {
                // They stay.
                drop((EntryGuard::all(self, joined), EntryGuard::all(self, others)));
                return Err(in_use(&range));
            }
            Plan::LimitExceeded(held) => return Err(limit_exceeded(&range, held, limit)),
            Plan::Covered(_) | Plan::Wait | Plan::InUse(_) => return Err(in_use(&range)),
        }
        // The slot has the registration before the entry is removed, and others may register the range.
        let _busy = EntryGuard::new(self, &request);
        let counted = alloc.counts.add_pinned(bytes, Pinned::Registered)?;
        let of_cache = Counted::new(&self.kept, bytes as u64);
        // SAFETY: the buffer keeps the range mapped now, and then the slot until its storage passes on the owner.
        let registration =
            unsafe { HostRegistration::new(alloc.context, range.start, bytes, 0, Box::new(())) };
        let registration = registration.map_err(|error| refused(error, &alloc, bytes))?;
        let kept = Kept {
            registration,
            counted,
            of_cache,
            context: alloc.context.clone(),
            free_thread: Arc::clone(alloc.free_thread),
        };
        let outcome = slot.keep(Box::new(kept)).map_err(|other| {
            other.end(Box::new(buffer.clone()));
            in_use(&range)
        });
        report::emit_deferred();
        outcome
    }
}
