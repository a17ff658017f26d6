//! Recording the events behind a stream's work, and making other streams wait for them.

use std::{sync::Arc, time::Duration};

use transload_core::{Fence, Result, Timeline};
use transload_cuda_sys::{DriverError, Event, EventTiming};
use transload_memory::lift;

use super::{
    pending_events::{PointState, Start, Timed},
    timeline::StreamTimeline,
};

impl Timed for Event {
    fn since(&self, start: &Self) -> Option<Duration> {
        self.elapsed_since(start).ok()
    }
}

impl StreamTimeline {
    fn take_event(&self, timing: EventTiming) -> Result<Arc<Event>, DriverError> {
        let spare = self.events.take_event(timing == EventTiming::Enabled);
        spare.map_or_else(|| Event::new(self.context(), timing).map(Arc::new), Ok)
    }

    /// Transfers that nobody waits for must not pile up.
    #[inline]
    fn poll_stale(&self, old: Option<u64>) {
        if let Some(old) = old {
            let _told_to_who_asks = self.poll(old);
        }
    }

    /// Records the event that a measured operation's time counts from.
    pub(crate) fn record_start(&self, asked_for: bool, counted: bool) -> Result<Start<Event>, DriverError> {
        let event = self.take_event(EventTiming::Enabled)?;
        event.record(self.stream())?;
        Ok(Start { event, asked_for, counted })
    }

    /// Gives work that the driver has taken the next point, and records its event: one that covers nothing enqueued later.
    /// Whoever enqueues anything but a small copy or fill calls [`flush_batch`](Self::flush_batch) before, so that nobody who
    /// waits for an earlier small operation waits for this one.
    pub(crate) fn record_end(
        &self,
        start: Option<Start<Event>>,
        what: &'static str,
    ) -> Result<u64, DriverError> {
        let timing = if start.is_some() { EventTiming::Enabled } else { EventTiming::Disabled };
        let end = self.take_event(timing)?;
        let (point, old) = self.events.record(what, end, start, |end| end.record(self.stream()))?;
        self.poll_stale(old);
        Ok(point)
    }

    /// Gives a small operation that the driver has taken the next point, in most cases without an event.
    #[inline]
    pub(crate) fn next_small_point(&self) -> Result<u64, DriverError> {
        let (point, close) = self.events.points.issue_small();
        if close {
            self.flush_batch()?;
        }
        Ok(point)
    }

    /// Records an event behind every point that has none. Blocks only where the driver has no room for an event.
    #[inline]
    pub(crate) fn flush_batch(&self) -> Result<(), DriverError> {
        if self.events.points.batch_is_open() { self.record_batch() } else { Ok(()) }
    }

    #[inline(never)]
    fn record_batch(&self) -> Result<(), DriverError> {
        if self.is_captured() {
            // The points stay without an event, and open, until the capture is over.
            return Ok(());
        }
        if !self.is_usable_here() {
            let given = self.events.points.issued();
            self.synchronize_driver()?;
            self.advance(given);
            return Ok(());
        }
        let old = self.record_late()?;
        self.poll_stale(old);
        Ok(())
    }

    /// Records an event behind every point that has none, and asks about none.
    pub(crate) fn record_late(&self) -> Result<Option<u64>, DriverError> {
        let end = self.take_event(EventTiming::Disabled)?;
        self.events.close(end, |end| end.record(self.stream()))
    }

    /// The handle is given out: from here on every operation has an event at once.
    pub(crate) fn share(&self) {
        if !self.events.points.is_shared() {
            self.events.points.share();
            // Where this fails a fence may also wait for what is enqueued through the handle, no more.
            let _only_asked_for_late = self.flush_batch();
        }
    }

    /// What covers a point, for which an event is recorded unless there is one. After an error the work is over.
    pub(crate) fn cover(&self, point: u64) -> Result<PointState<Event>> {
        let covered = self.events.pending.lock().covering(point);
        if !matches!(covered, PointState::Unrecorded) {
            return Ok(covered);
        }
        self.flush_batch().map_err(|error| self.resolve_unrecorded_error(error))?;
        Ok(self.events.pending.lock().covering(point))
    }

    /// Makes later work of this stream come after a fence, on the device. Returns whether it had to wait; `None` for a fence of
    /// another backend.
    pub(crate) fn wait_for_fence(&self, fence: &Fence) -> Option<Result<bool>> {
        let other = fence.timeline().as_any().downcast_ref::<Self>()?;
        // What is earlier in the same stream is done earlier.
        Some(if std::ptr::eq(other, self) { Ok(false) } else { self.wait_for(other, fence.point()) })
    }

    /// Makes later work of this stream wait for `point` of another one, on the device. Answers whether it had to: what is
    /// over, or waited for by an earlier wait, is not waited for again.
    pub(crate) fn wait_for(&self, other: &Self, point: u64) -> Result<bool> {
        if other.reached() >= point || self.events.pending.lock().waits_for(other.id(), point) {
            return Ok(false);
        }
        let (event, upto) = match other.cover(point) {
            Ok(PointState::Pending(event, upto)) => (event, upto),
            // After an error, too, its work is over, well or not.
            Ok(PointState::Complete) | Err(_) => return Ok(false),
            // Only someone's capture keeps a point without an event.
            Ok(PointState::Unrecorded) => {
                return match other.check_not_captured() {
                    Err(error) => Err(error),
                    Ok(()) => other.wait(point).map(|()| false),
                };
            }
        };
        // Nobody who waits for an earlier small operation of this stream shall wait for the other stream.
        self.flush_batch().map_err(lift)?;
        match self.stream().wait_event(&event) {
            Ok(()) => {
                self.events.pending.lock().note_wait(other.id(), upto);
                Ok(true)
            }
            // Where the other device is lost, its work is over and this stream is well.
            Err(_) if other.poll(point).is_err() => Ok(false),
            Err(error) => Err(lift(error)),
        }
    }
}
