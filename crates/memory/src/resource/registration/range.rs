//! A live registration: it tracks the work in flight on it by fences, and ends when that is complete.

use std::{any::Any, ops::Range, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;
use transload_core::{Access, Claims, DeviceId, Fence, MemoryKind, Place, RawBuffer, Storage};
use transload_cuda_sys::DriverError;

use super::ending::{Held, InUse, Owners, claim_unused};
use crate::{
    allocation_counts::CountGuard,
    manager::AllocContext,
    resource::host_registration::{HostRegistration, Owner},
};

/// A registered range and the buffers that keep it mapped.
pub(super) struct Registration {
    /// The storage of `whole` also holds these; dropped first, so that the last reference goes with it.
    owners: Owners,
    /// Used only to track fences.
    whole: RawBuffer,
}

/// Storage of a buffer that tracks the fences of a registration.
pub(super) struct RegisteredRange {
    address: NonNull<u8>,
    bytes: usize,
    /// Taken when the registration ends.
    held: Mutex<Option<Held>>,
}

// SAFETY: the address is never dereferenced here; a registration may be released on any thread.
unsafe impl Send for RegisteredRange {}
// SAFETY: as above.
unsafe impl Sync for RegisteredRange {}

impl Registration {
    /// Creates a registration of a range that `owners` keep mapped.
    pub(super) fn new(
        range: Range<usize>,
        alloc: &AllocContext<'_>,
        registration: HostRegistration,
        counted: CountGuard,
        owners: Owners,
    ) -> Option<Self> {
        let held = Held::new(alloc, registration, counted, Arc::clone(&owners));
        let registered = RegisteredRange::new(range, held)?;
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

    /// Claims the owners, so that no work on them can be submitted. Queries the driver.
    ///
    /// # Errors
    /// `InUse` if something uses the owners or the registration: copy engines use their bytes in place while registered.
    pub(super) fn claim_unused(&self) -> Result<Claims<'_>, InUse<'_>> {
        let claims = claim_unused(&self.owners)?;
        match self.whole.lend(Access::Write) {
            Ok(loan) if loan.after().iter().all(Fence::is_complete) => Ok(claims),
            _ => Err(InUse { until: Vec::new(), claims: Some(Box::new(claims)) }),
        }
    }

    /// Ends the registration now and returns the owner that kept the memory mapped. The caller has claimed the owners.
    pub(super) fn end(&self) -> Result<Option<Owner>, DriverError> {
        let registered =
            self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<RegisteredRange>());
        let held = registered.and_then(|registered| registered.held.lock().take());
        held.map_or(Ok(None), Held::end)
    }
}

impl RegisteredRange {
    /// Returns `None` for the address 0.
    pub(super) fn new(range: Range<usize>, held: Held) -> Option<Self> {
        let address = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start))?;
        Some(Self { address, bytes: range.end - range.start, held: Mutex::new(Some(held)) })
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
    /// Work on the owners that is submitted meanwhile also delays the end of the registration.
    fn drop(&mut self) {
        if let Some(held) = self.held.get_mut().take() {
            let start = self.address.as_ptr().expose_provenance();
            held.end_later(start..start + self.bytes);
        }
    }
}
