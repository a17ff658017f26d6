//! The ends of a stream's operations: points, and the events behind them, recorded by any thread without an order among them.
//!
//! An event is recorded after its point was given, and a point after its work was taken by the driver. So an event lies behind
//! the work of its point and of all before it, whichever thread records first; where a later point has an event already, that
//! one covers the earlier point as well. `tests/loom` checks this file.

use super::{
    pending_events::{PendingEvents, Start, Timed},
    points::Points,
    slot::Slot,
};
use crate::sync::{Arc, Mutex};

/// What the operations of a run are, for messages.
pub(crate) const SMALL: &str = "small copy or fill";

/// The points of a stream and its events. `E` is the driver's event.
#[repr(C)]
pub(crate) struct StreamEvents<E> {
    pub(crate) points: Points,
    pub(crate) pending: Mutex<PendingEvents<E>>,
    /// An event to record next, had without the lock.
    ready: Slot<E>,
}

impl<E: Timed> StreamEvents<E> {
    pub(crate) fn new(is_shared: bool, spare: Arc<E>) -> Self {
        let ready = Slot::default();
        let _none = ready.put(spare);
        Self { points: Points::new(is_shared), pending: Mutex::new(PendingEvents::with_room()), ready }
    }

    /// An event to record again, if there is one.
    pub(crate) fn take_event(&self, is_timed: bool) -> Option<Arc<E>> {
        let ready = if is_timed { None } else { self.ready.take() };
        ready.or_else(|| self.pending.lock().take_spare(is_timed))
    }

    /// Gives work that the driver has taken the next point, and then records `end`, which covers no point that is given later.
    /// Returns the point, and an old one that it is time to ask about. Where the recording fails the point has no event, as in a
    /// run, and the next event covers it.
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

    /// Records `end` behind the points that have no event. What is given meanwhile may be covered, and is not promised. Returns
    /// an old point that it is time to ask about.
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

    /// Takes note that everything up to `point` is over. The driver is asked for durations under no lock.
    pub(crate) fn advance(&self, point: u64) {
        let timed = self.pending.lock().complete_or_list_timed(point);
        if let Some(timed) = timed {
            let durations = timed.into_iter().map(|ended| (ended.upto, ended.duration())).collect::<Vec<_>>();
            self.pending.lock().complete_with(point, &durations);
        }
        self.points.reach(point);
    }
}
