//! A live registration: what is in flight on it is known by fences, and it ends when they are over.

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
    /// The registration have them, too; dropped first here, so that the last handle goes where the registration are given back.
    owners: Vec<RawBuffer>,
    /// Nobody uses it but for its fences.
    whole: RawBuffer,
}

/// The memory behind `whole`.
struct RegisteredRange {
    address: NonNull<u8>,
    bytes: usize,
    context: Context,
    free_thread: Arc<FreeThread>,
    /// Taken when the registration ends.
    held: Mutex<Option<(HostRegistration, CountGuard)>>,
}

// SAFETY: the address is only a name here; registration may be given back on any thread.
unsafe impl Send for RegisteredRange {}
// SAFETY: as above.
unsafe impl Sync for RegisteredRange {}

impl Registration {
    /// Of a range that `owners` keep mapped.
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

    /// It is not to end before the fences are over.
    pub(super) fn keep_until(&self, fences: &[Fence]) -> bool {
        fences.iter().all(|fence| {
            let claims = Claims::acquire(&mut [(&self.whole, Access::Read)]);
            // SAFETY: nobody writes through the registration's own buffer, so the claim came after nothing.
            claims.map(|claims| unsafe { claims.commit(fence) }).is_ok()
        })
    }

    /// Whether work is in flight on it, also through the buffers whose bytes they are: copy engines use those in place while
    /// they are registered. Asks the driver.
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

    /// Ends it now, and leaves what kept the memory mapped to the caller. Nothing may use it any more.
    pub(super) fn end(&self) -> Result<Option<Owner>, DriverError> {
        let registered =
            self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<RegisteredRange>());
        let Some((mut registration, counted)) =
            registered.and_then(|registered| registered.held.lock().take())
        else {
            return Ok(None);
        };
        let ended = registration.end();
        // What could not be ended stays in the ledger: it is still there.
        if ended.is_ok() {
            drop(counted)
        } else {
            std::mem::forget(counted)
        }
        ended
    }
}

impl Drop for Registration {
    /// What is in flight through the owners is in flight on the registration, which ends behind it.
    fn drop(&mut self) {
        let registered =
            self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<RegisteredRange>());
        let is_held = registered.is_some_and(|registered| registered.held.lock().is_some());
        if is_held && !transload_core::mutant!("memory/registration-ends-after-owners-work") {
            for owner in &self.owners {
                // A submission under way counts as in use.
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
