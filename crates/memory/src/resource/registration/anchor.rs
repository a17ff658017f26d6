//! A live registration: what is in flight on it is known by fences, and it ends when they are over.

use std::{any::Any, ops::Range, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;
use transload_core::{Access, Claims, DeviceId, Fence, MemoryKind, Place, RawBuffer, Storage};
use transload_cuda_sys::{Context, DriverError};

use super::pending::end_of_uses;
use crate::{
    manager::Parts,
    resource::pins::{Owner, Pins},
    storage::{Address, Janitor},
    tally::Counted,
};

/// A registered range and the buffers that keep it mapped.
pub(super) struct Registration {
    /// The pins have them, too; dropped first here, so that the last handle goes where the pins are given back.
    owners: Vec<RawBuffer>,
    /// Nobody uses it but for its fences.
    whole: RawBuffer,
}

/// The memory behind `whole`.
struct Anchor {
    address: NonNull<u8>,
    bytes: usize,
    context: Context,
    janitor: Arc<Janitor>,
    /// Taken when the registration ends.
    held: Mutex<Option<(Pins, Counted)>>,
}

// SAFETY: the address is only a name here; pins may be given back on any thread.
unsafe impl Send for Anchor {}
// SAFETY: as above.
unsafe impl Sync for Anchor {}

impl Registration {
    /// Of a range that `owners` keep mapped.
    pub(super) fn new(
        range: &Range<usize>,
        parts: &Parts<'_>,
        pins: Pins,
        counted: Counted,
        owners: Vec<RawBuffer>,
    ) -> Option<Self> {
        let anchor = Anchor {
            address: NonNull::new(std::ptr::with_exposed_provenance_mut(range.start))?,
            bytes: range.end - range.start,
            context: parts.context.clone(),
            janitor: Arc::clone(parts.janitor),
            held: Mutex::new(Some((pins, counted))),
        };
        Some(Self { owners, whole: RawBuffer::new(Box::new(anchor), parts.reclaimer) })
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
    pub(super) fn is_at_work(&self) -> bool {
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
        let anchor = self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<Anchor>());
        let Some((mut pins, counted)) = anchor.and_then(|anchor| anchor.held.lock().take()) else {
            return Ok(None);
        };
        let ended = pins.end();
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
        let anchor = self.whole.storage().and_then(|storage| storage.as_any().downcast_ref::<Anchor>());
        let is_held = anchor.is_some_and(|anchor| anchor.held.lock().is_some());
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

// SAFETY: the owners, which the pins keep, have these bytes mapped; the range is named by its address and never read through
// this storage.
unsafe impl Storage for Anchor {
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

impl Drop for Anchor {
    fn drop(&mut self) {
        if let Some((pins, counted)) = self.held.get_mut().take() {
            self.janitor.free(self.context.clone(), Address::Registered(pins), counted);
        }
    }
}
