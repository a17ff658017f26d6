//! A range kept for the host, which looks at the bytes in another place: to everyone else it is an open host view.

use std::fmt;

use crate::{
    Access, DeviceId, Fence, RawBuffer, Result,
    hazard::{Attempt, Retained, Ticket, WakeList, in_flight},
    submit::unblocked::{Turns, Unblocked},
};

/// A range of a buffer that work in conflict is kept away from, as by an open [`HostView`](crate::HostView): who wants to
/// enqueue such work is answered `Busy`. Unlike a view it needs no address that the host can use, and it owns its share of the
/// buffer. For types that keep a copy for the host beside a device's memory.
///
/// Ends when dropped, or becomes a use by work that was enqueued meanwhile: [`commit`](Self::commit). Forgotten, it keeps the
/// range for good.
#[must_use = "a hold ends when it is dropped"]
pub struct RangeGuard {
    buffer: RawBuffer,
    /// Taken when it ends in another way than by its drop.
    ticket: Option<Ticket>,
}

/// What came of [`RawBuffer::try_lock_range`].
#[derive(Debug)]
pub enum TryLockResult {
    /// The range is held.
    Locked(RangeGuard),
    /// Something is in the way that will go by itself.
    Blocked(PendingConflict),
}

/// Work in flight, or another thread's claim, in the way of a hold.
#[derive(Debug)]
pub struct PendingConflict {
    buffer: RawBuffer,
    by: Unblocked,
}

impl RawBuffer {
    /// Keeps work in conflict away from the range, where nothing is in the way. Never blocks, and asks no driver: it may be
    /// called under a lock.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where a host view or another hold in conflict is open.
    pub fn try_lock_range(&self, access: Access) -> Result<TryLockResult> {
        let range = self.range();
        Ok(match self.hazards().try_lock_range(&range, access)? {
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
    /// Blocks the calling thread until it is gone. Something else may be in the way then. What failed is gone, too; who
    /// awaits it is told.
    ///
    /// # Errors
    /// None at present.
    pub fn wait(self) -> Result<()> {
        self.by.block(&Turns::default());
        self.forget()
    }

    /// Asks the driver whether it is gone, without waiting.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where it is not.
    pub fn check(self) -> Result<()> {
        if self.by.is_resolved() { self.forget() } else { Err(in_flight(&self.buffer.range())) }
    }

    fn forget(&self) -> Result<()> {
        self.buffer.hazards().forget(&self.buffer.range(), self.by.until());
        Ok(())
    }
}

impl RangeGuard {
    /// The range.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Ends the hold in favour of work that was enqueued on the range while it was held: later uses come after the fence, and
    /// the memory lives until then.
    ///
    /// # Safety
    /// * `fence` is over only when that work is.
    pub unsafe fn commit(mut self, fence: &Fence) {
        if let Some(ticket) = self.ticket.take() {
            self.buffer.record_use_by_fence(fence);
            let claims = [(&self.buffer.range(), &ticket)];
            self.buffer.hazards().commit(claims, fence, Retained::default(), &mut WakeList::default());
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // A device may have read beside it, and the host again behind that.
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
