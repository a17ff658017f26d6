//! A device's turn: while the guard lives no slice of the host's is opened in conflict with it.

use std::{fmt, marker::PhantomData, ops::Range};

use transload_core::{Access, Error, ErrorKind, Pod, Queue, RawBuffer, Result};

use super::{
    Role, UnifiedMode,
    inner::Inner,
    range_locks::{RangeLockId, Side},
};

/// A range of a unified buffer while a device uses it. Made by
/// [`UnifiedBuffer::acquire_for_device`](crate::UnifiedBuffer::acquire_for_device); several may live at the same time.
///
/// Declare [`raw`](Self::raw) to a launch, or submit operations on it: such work is ordered by the buffer, and a host slice waits
/// for it, so the guard may be dropped as soon as it is enqueued. What is made to use [`device_address`](Self::device_address)
/// in another way must be over before, and come after earlier work by the caller's care.
///
/// Views of `raw` are ordered by what is in flight on it, as for any buffer; guards keep out the slices of the unified buffer.
///
/// A guard for writing that is dropped leaves the device's side as the newest. Usable from, and dropped on, any thread.
#[must_use = "a guard ends when it is dropped"]
pub struct DeviceAccess<'a, T> {
    inner: &'a Inner,
    part: RawBuffer,
    range: Range<usize>,
    role: Role,
    access: Access,
    id: RangeLockId,
    elements: PhantomData<fn() -> T>,
}

impl<'a, T: Pod> DeviceAccess<'a, T> {
    pub(crate) fn acquire(
        inner: &'a Inner,
        queue: &dyn Queue,
        range: Range<usize>,
        role: Role,
        access: Access,
    ) -> Result<Self> {
        if role == Role::Input && access == Access::Write {
            let text = "an input is not written; valid roles for writing are Resident, Output and InOut";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        inner.check_place(queue.device())?;
        if queue.device().is_cpu() {
            let text =
                "a queue of the host's acquires nothing for a device; valid is a queue of a CUDA device";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        inner.retry_failed_uploads()?;
        let part = inner.raw.slice(range.clone())?;
        let id = {
            let mut state = inner.state.lock();
            state.locks.check(&range, Side::Device, access)?;
            state.locks.add(range.clone(), Side::Device, access)
        };
        // From here on the guard's drop takes the lock out.
        let guard = Self { inner, part, range, role, access, id, elements: PhantomData };
        if inner.mode() == UnifiedMode::Managed {
            inner.apply_role(queue, &guard.range, role)?;
        }
        Ok(guard)
    }
}

impl<T: Pod> DeviceAccess<'_, T> {
    /// The range's bytes as the device uses them, to be declared to a launch or an operation.
    #[must_use]
    pub fn raw(&self) -> &RawBuffer {
        &self.part
    }

    /// The address of the first element on the device. The buffer does not order what uses it: earlier work may be in flight,
    /// where the mode is [`Explicit`](UnifiedMode::Explicit) also the copy of what the host wrote last. Let it come after what
    /// [`lend`](RawBuffer::lend) of [`raw`](Self::raw) answers ([`Loan::after`](transload_core::Loan::after)).
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        self.part.device_address()
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.part.len() / size_of::<T>().max(1)
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// What the device uses it for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// What the device does to it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl<T> Drop for DeviceAccess<'_, T> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        if self.access == Access::Write {
            // Also where nothing was submitted: the address may have been used.
            state.copy.set_stale(&self.range);
        }
        state.locks.remove(self.id);
    }
}

impl<T> fmt::Debug for DeviceAccess<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAccess")
            .field("buffer", &self.part)
            .field("role", &self.role)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
