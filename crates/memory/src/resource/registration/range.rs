//! A live registration: it tracks the work in flight on it by fences, and ends when that is complete.

use std::{any::Any, ops::Range, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;
use transload_core::{Access, Claims, DeviceId, Fence, MemoryKind, Place, RawBuffer, Storage};
use transload_cuda_sys::{Context, DriverError};

use super::pending_uses::end_of_uses;
use crate::{
    allocation_counts::CountGuard,
    manager::AllocContext,
    resource::host_registration::{HostRegistration, Owner},
    storage::{Address, FreeThread},
};

/// A registered range and the buffers that keep it mapped.
pub(super) struct Registration {
    /// `HostRegistration` also holds these; dropped first, so that the last reference goes with it.
    owners: Vec<RawBuffer>,
    /// Used only to track fences.
    whole: RawBuffer,
}

/// Storage of `whole`.
struct RegisteredRange {
    address: NonNull<u8>,
    bytes: usize,
    context: Context,
    free_thread: Arc<FreeThread>,
    /// Taken when the registration ends.
    held: Mutex<Option<(HostRegistration, CountGuard)>>,
}

// SAFETY: the address is never dereferenced here; a registration may be released on any thread.
unsafe impl Send for RegisteredRange {}
// SAFETY: as above.
unsafe impl Sync for RegisteredRange {}

impl Registration {
    /// Creates a registration of a range that `owners` keep mapped.
    pub(super) fn new(
        range: &Range<usize>,
        alloc: &AllocContext<'_>,
        registration: HostRegistration,
        counted: CountGuard,
        owners: Vec<RawBuffer>,
    ) -> Option<Self> {
        let registered = RegisteredRange {
            address: NonNull::new(std::ptr::with_exposed_provenance_mut(range.start))?,
            bytes: range.end - range.start,
            context: alloc.context.clone(),
            free_thread: Arc::clone(alloc.free_thread),
            held: Mutex::new(Some((registration, counted))),
        };
        Some(Self { owners, whole: RawBuffer::new(Box::new(registered), alloc.reclaimer) })
    }

    pub(super) fn owners(&self) -> &[RawBuffer] {
        &self.owners
    }

    /// Delays the end of the registration until the fences complete. Returns whether that was possible.
    pub(super) fn keep_until(&self, fences: &[Fence]) -> bool {
        fences.iter().all(|fence| {
            let claims = Claims::acquire(&mut [(&self.whole, Access::Read)]);
            // SAFETY: the registration's own buffer is never written, so the claim has no predecessors.
            claims.map(|claims| unsafe { claims.commit(fence) }).is_ok()
        })
    }

    /// Returns whether work is in flight on it or on the owners: copy engines use their bytes in place while
    /// registered. Queries the driver.
    pub(super) fn is_in_flight(&self) -> bool {
        let is_complete =
            |owner: &RawBuffer| owner.in_flight().is_some_and(|own| own.iter().all(Fence::is_complete));
        if !self.owners.iter().all(is_complete) {
            return true;
        }
        match self.whole.lend(Access::Write) {
            Ok(loan) => !loan.after().iter().all(Fence::is_complete),
            Err(_lent_already) => true,
        }
    }

    /// Ends the registration now and returns the owner that kept the memory mapped. Nothing may use it any more.
    pub(super) fn end(&self) -> Result<Option<Owner>, DriverError> {
        let registered =
            self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<RegisteredRange>());
        let Some((mut registration, counted)) =
            registered.and_then(|registered| registered.held.lock().take())
        else {
            return Ok(None);
        };
        let ended = registration.end();
        // A registration that could not be ended still counts.
        if ended.is_ok() {
            drop(counted)
        } else {
            std::mem::forget(counted)
        }
        ended
    }
}

impl Drop for Registration {
    /// Work in flight on the owners also delays the end of the registration.
    fn drop(&mut self) {
        let registered =
            self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<RegisteredRange>());
        let is_held = registered.is_some_and(|registered| registered.held.lock().is_some());
        if is_held && !transload_core::mutant!("memory/registration-ends-after-owners-work") {
            for owner in &self.owners {
                // A submission in progress counts as use.
                self.keep_until(&owner.in_flight().unwrap_or_else(|| {
                    if transload_core::mutant!("memory/registration-counts-submissions") {
                        return Vec::new();
                    }
                    vec![end_of_uses(owner)]
                }));
            }
        }
    }
}

// SAFETY: the owners, which the registration keep, have these bytes mapped; the range is named by its address and never read through
// this storage.
unsafe impl Storage for RegisteredRange {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pinned)
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for RegisteredRange {
    fn drop(&mut self) {
        if let Some((registration, counted)) = self.held.get_mut().take() {
            self.free_thread.free(self.context.clone(), Address::Registered(registration), counted);
        }
    }
}
