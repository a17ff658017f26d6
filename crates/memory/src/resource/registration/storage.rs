//! Storage of a registered buffer: the same bytes as pinned memory, lent by their owner.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, Fence, Loan, MemoryKind, Place, Storage};

use super::range::Registration;

/// Registered bytes of another buffer.
pub(super) struct RegisteredStorage {
    /// Returned before the registration is released.
    loan: Loan,
    /// `None` if that of the lender's slot keeps the bytes pinned.
    registration: Option<Arc<Registration>>,
    writable: bool,
}

impl RegisteredStorage {
    pub(super) fn new(loan: Loan, registration: Option<Arc<Registration>>, writable: bool) -> Self {
        Self { loan, registration, writable }
    }
}

// SAFETY: the loan keeps the bytes alive and excludes other users until drop; the registration keeps them pinned.
unsafe impl Storage for RegisteredStorage {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pinned)
    }

    fn len(&self) -> usize {
        self.loan.buffer().len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.loan.buffer().host_address()
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    /// Makes both the registration and the lender wait for the fences.
    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        if self.registration.as_ref().is_some_and(|registration| !registration.keep_until(until)) {
            return false;
        }
        self.loan.end_after(until);
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
