//! Range guards: exclude conflicting work from a range without an address that the host can use.

use std::fmt;

use crate::{
    Access, DeviceId, Fence, RawBuffer, Result,
    hazard::{Attempt, Claimed, Opening, Retained, Ticket, WakeList, in_flight},
    submit::unblocked::{Turns, Unblocked},
};

/// A guard that blocks conflicting work on a range, like an open [`HostView`](crate::HostView). Enqueueing
/// such work returns `Busy`. Unlike a view, it needs no host address and owns its share of the buffer. For
/// types that keep a copy for the host next to a device's memory.
///
/// Ends when dropped, or becomes a use by work enqueued meanwhile: [`commit`](Self::commit). A leaked guard
/// blocks the range forever.
#[must_use = "a range guard ends when it is dropped"]
pub struct RangeGuard {
    buffer: RawBuffer,
    /// Taken by `commit`.
    ticket: Option<Ticket>,
}

/// The result of [`RawBuffer::try_lock_range`].
#[derive(Debug)]
pub enum TryLockResult {
    /// The range is locked.
    Locked(RangeGuard),
    /// Conflicting work is in flight, or another thread has a claim.
    Blocked(PendingConflict),
}

/// Conflicting work in flight, or another thread's claim, that blocks a range guard.
#[derive(Debug)]
pub struct PendingConflict {
    buffer: RawBuffer,
    by: Unblocked,
}

impl RawBuffer {
    /// Blocks conflicting work on the range, if there is none now. Never blocks and does not query the
    /// driver, so it may be called under a lock.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a conflicting host view, loan or range guard is open,
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) if bytes may be damaged.
    pub fn try_lock_range(&self, access: Access) -> Result<TryLockResult> {
        let range = self.range();
        Ok(match self.hazards().try_open(&range, access, None, Opening::Guard)? {
            Attempt::Held(ticket) => {
                self.record_use_by(DeviceId::Cpu);
                TryLockResult::Locked(RangeGuard { buffer: self.clone(), ticket: Some(ticket) })
            }
            Attempt::Blocked(before) => {
                let by = Unblocked::before(self, range, access, before, None);
                TryLockResult::Blocked(PendingConflict { buffer: self.clone(), by })
            }
        })
    }
}

impl PendingConflict {
    /// Blocks the calling thread until the conflict is resolved. Another one may exist then. Failed work
    /// counts as complete; its own transfer reports the error.
    ///
    /// # Errors
    /// None at present.
    pub fn wait(self) -> Result<()> {
        self.by.block(&Turns::default());
        self.forget()
    }

    /// Queries the driver whether the conflict is resolved, without waiting.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if it is not.
    pub fn check(self) -> Result<()> {
        if self.by.is_resolved() { self.forget() } else { Err(in_flight(&self.buffer.range())) }
    }

    fn forget(&self) -> Result<()> {
        self.buffer.hazards().forget(&self.buffer.range(), self.by.until());
        Ok(())
    }
}

impl RangeGuard {
    /// Returns the guarded range.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Replaces the guard by a use: work that was enqueued on the range while it was guarded. Later uses wait
    /// for the fence, and the memory lives until then.
    ///
    /// # Safety
    /// * `fence` completes only after that work.
    pub unsafe fn commit(mut self, fence: &Fence) {
        if let Some(ticket) = self.ticket.take() {
            self.buffer.record_use_by_fence(fence);
            let (buffer, range) = (&self.buffer, self.buffer.range());
            let claim = Claimed { buffer, range, access: ticket.access, ticket: Some(ticket) };
            buffer.hazards().commit(&[claim], fence, Retained::default(), &mut WakeList::default());
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // A device may have read concurrently, after which the host used it again.
            self.buffer.record_use_by(DeviceId::Cpu);
            self.buffer.hazards().withdraw(&self.buffer.range(), ticket, &mut WakeList::default());
        }
    }
}

impl fmt::Debug for RangeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeGuard({:?})", self.buffer)
    }
}
