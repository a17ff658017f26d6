//! Device access to a range: no conflicting host slice can be opened while the guard lives.

use std::{fmt, marker::PhantomData, ops::Range};

use transload_core::{Access, Error, ErrorKind, Pod, Queue, RawBuffer, Result};

use super::{
    Role, UnifiedMode,
    inner::Inner,
    range_locks::{RangeLockId, Side},
};

/// A guard for device access to a range of a unified buffer, returned by
/// [`UnifiedBuffer::acquire_for_device`](crate::UnifiedBuffer::acquire_for_device). Several may exist at the same time.
///
/// Declare [`raw`](Self::raw) to a launch, or submit operations on it: the buffer orders such work and host slices wait
/// for it, so the guard may be dropped once it is enqueued. Other work on [`device_address`](Self::device_address) must
/// be ordered after earlier work by the caller, and be complete before the drop.
///
/// Views of `raw` are ordered by the work in flight on it, like those of any buffer; guards only exclude the unified
/// buffer's slices.
///
/// Dropping a write guard marks the device's bytes as the newest. Usable from any thread.
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
            let text = "role Input cannot be written; use Resident, Output or InOut";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        inner.check_place(queue.device())?;
        if queue.device().is_cpu() {
            let text = "queue belongs to cpu, expected a queue of a CUDA device";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        inner.retry_failed_uploads()?;
        let part = inner.raw.slice(range.clone())?;
        let id = {
            let mut state = inner.state.lock();
            state.locks.check(&range, Side::Device, access)?;
            state.locks.add(range.clone(), Side::Device, access)
        };
        // From now on dropping the guard removes the lock.
        let guard = Self { inner, part, range, role, access, id, elements: PhantomData };
        if inner.mode() == UnifiedMode::Managed {
            inner.apply_role(queue, &guard.range, role)?;
        }
        Ok(guard)
    }
}

impl<T: Pod> DeviceAccess<'_, T> {
    /// Returns the range's bytes, to be declared to a launch or an operation.
    #[must_use]
    pub fn raw(&self) -> &RawBuffer {
        &self.part
    }

    /// Returns the device address of the first element. The buffer does not order work on it: earlier work may be in
    /// flight, and in the [`Explicit`](UnifiedMode::Explicit) mode the upload of the latest host writes. Order such
    /// work after the fences of [`lend`](RawBuffer::lend) of [`raw`](Self::raw)
    /// ([`Loan::after`](transload_core::Loan::after)).
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        self.part.device_address()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.part.len() / size_of::<T>().max(1)
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Returns the role of the range.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns whether the device reads or writes the range.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl<T: Pod> AsRef<RawBuffer> for DeviceAccess<'_, T> {
    fn as_ref(&self) -> &RawBuffer {
        self.raw()
    }
}

impl<T> Drop for DeviceAccess<'_, T> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        if self.access == Access::Write {
            // Even if nothing was submitted: the address may have been used.
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
