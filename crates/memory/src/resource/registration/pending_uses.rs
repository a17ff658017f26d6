//! A fence of the current uses of buffers, available even while another thread is submitting one.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    thread,
    time::Duration,
};

use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, TrySubmitError, Turns,
    next_timeline_id,
};

use super::ending::Owners;

/// Pause before another look for an open view or loan.
const PAUSE: Duration = Duration::from_millis(1);

/// Reaches point 1 when the uses are complete that are found once no submission is in progress and no view or loan is open. Keeps the
/// buffers alive.
struct PendingUses {
    id: TimelineId,
    owners: Owners,
    /// The fences of the uses, once found.
    uses: OnceLock<Vec<Fence>>,
    over: AtomicBool,
}

/// Returns a fence of the buffers' current uses, including submissions in progress, views and loans.
pub(super) fn end_of_uses(owners: &Owners) -> Fence {
    let (id, owners) = (next_timeline_id(), Arc::clone(owners));
    let uses = PendingUses { id, owners, uses: OnceLock::new(), over: AtomicBool::new(false) };
    Fence::new(Arc::new(uses), 1)
}

impl PendingUses {
    /// Fails during a submission, and while a view or a loan is open.
    fn uses(&self) -> Result<&[Fence], TrySubmitError> {
        if let Some(known) = self.uses.get() {
            return Ok(known);
        }
        let mut owners: Vec<_> = self.owners.iter().map(|owner| (owner, Access::Write)).collect();
        let claims = Claims::try_acquire(&mut owners, &Turns::default())?;
        Ok(self.uses.get_or_init(|| claims.after().to_vec()))
    }

    fn is_complete(&self) -> bool {
        let over = self.over.load(Ordering::Acquire)
            || self.uses().is_ok_and(|uses| uses.iter().all(Fence::is_complete));
        if over {
            self.over.store(true, Ordering::Release);
        }
        over
    }
}

// SAFETY: the point is reached when every use's own fence completes; those were read when no submission was in progress.
unsafe impl Timeline for PendingUses {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        u64::from(self.over.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        Ok(self.is_complete())
    }

    fn wait(&self, _point: u64) -> Result<()> {
        loop {
            match self.uses() {
                Ok(uses) => {
                    for fence in uses {
                        let _reported_by_the_transfer = fence.wait();
                    }
                    self.over.store(true, Ordering::Release);
                    return Ok(());
                }
                // Lasts at most one driver call.
                Err(TrySubmitError::WouldBlock(_)) => thread::yield_now(),
                // A view or a loan, which was opened after `held_by_user`.
                Err(TrySubmitError::Failed(_)) => thread::park_timeout(PAUSE),
            }
        }
    }

    fn wake_at(&self, _point: u64, waker: &Waker) -> bool {
        if self.is_complete() {
            return true;
        }
        match self.uses() {
            Ok(uses) => uses.iter().all(|fence| fence.wake_at(waker)),
            Err(_) => {
                waker.wake_by_ref();
                false
            }
        }
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        match self.uses() {
            Ok(uses) => {
                let mut open = uses.iter().filter(|fence| !fence.is_known_complete());
                open.find_map(|fence| fence.held_by_user())
            }
            Err(TrySubmitError::WouldBlock(_)) => None,
            Err(TrySubmitError::Failed(error)) => {
                let text = "memory stays registered while its buffer is in use";
                Some(Error::caused_by(ErrorKind::Busy, text, error))
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
