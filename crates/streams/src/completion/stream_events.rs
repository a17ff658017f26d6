//! The points of a stream and the events that complete them. Threads may record concurrently.
//!
//! A point is issued after the driver accepted its work, and its event is recorded after that. So an event covers its
//! point and all before it, whichever thread records first. `tests/loom` checks this file.

use smallvec::SmallVec;

use super::{
    pending_events::{PendingEvents, Start, Timed},
    points::Points,
    slot::Slot,
};
use crate::sync::{Arc, Mutex};

/// Name of a batch's operations in error messages.
pub(crate) const SMALL: &str = "small copy or fill";

/// A stream's points and events. `E` is the driver's event.
#[repr(C)]
pub(crate) struct StreamEvents<E> {
    pub(crate) points: Points,
    pub(crate) pending: Mutex<PendingEvents<E>>,
    /// A spare event, taken without the lock.
    ready: Slot<E>,
}

impl<E: Timed> StreamEvents<E> {
    pub(crate) fn new(is_shared: bool, spare: Arc<E>) -> Self {
        let ready = Slot::default();
        let _none = ready.put(spare);
        Self { points: Points::new(is_shared), pending: Mutex::new(PendingEvents::with_room()), ready }
    }

    /// Returns a spare event, if any.
    pub(crate) fn take_event(&self, is_timed: bool) -> Option<Arc<E>> {
        let ready = if is_timed { None } else { self.ready.take() };
        ready.or_else(|| self.pending.lock().take_spare(is_timed))
    }

    /// Issues a point for work that the driver has accepted, then records `end` for it. Returns the point, and an old
    /// point to poll. If recording fails, the point stays open as in a batch, and the next event covers it.
    pub(crate) fn record<R>(
        &self,
        what: &'static str,
        end: Arc<E>,
        start: Option<Start<E>>,
        record: impl FnOnce(&E) -> Result<(), R>,
    ) -> Result<(u64, Option<u64>), R> {
        let point = self.points.issue();
        record(&end)?;
        Ok((point, self.note(point, what, end, start)))
    }

    /// Records `end` for all points without an event. Points issued concurrently may be covered too. Returns an old
    /// point to poll.
    pub(crate) fn close<R>(
        &self,
        end: Arc<E>,
        record: impl FnOnce(&E) -> Result<(), R>,
    ) -> Result<Option<u64>, R> {
        let upto = self.points.issued();
        if !self.points.batch_is_open() {
            self.pending.lock().recycle(false, end);
            return Ok(None);
        }
        record(&end)?;
        self.points.end_batch(upto);
        Ok(self.note(upto, SMALL, end, None))
    }

    fn note(&self, upto: u64, what: &'static str, end: Arc<E>, start: Option<Start<E>>) -> Option<u64> {
        let mut pending = self.pending.lock();
        pending.push(upto, what, end, start);
        if self.ready.is_empty()
            && let Some(spare) = pending.take_spare(false)
            && let Some(one_more) = self.ready.put(spare)
        {
            pending.recycle(false, one_more);
        }
        let old = pending.point_to_poll();
        drop(pending);
        self.points.cover(upto);
        old
    }

    /// Records that everything up to `point` is complete. Durations are queried without the lock.
    pub(crate) fn advance(&self, point: u64) {
        let timed = self.pending.lock().complete_or_list_timed(point);
        if let Some(timed) = timed {
            let durations =
                timed.into_iter().map(|ended| (ended.upto, ended.duration())).collect::<SmallVec<[_; 2]>>();
            self.pending.lock().complete_with(point, &durations);
        }
        self.points.reach(point);
    }
}
