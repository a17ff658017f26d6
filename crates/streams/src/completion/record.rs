//! Records the events of a stream's work, and makes other streams wait for them.

use std::{sync::Arc, time::Duration};

use transload_core::{Fence, Result, Timeline, events::report};
use transload_cuda_sys::{DriverError, Event, EventTiming};

use super::{
    pending_events::{PointState, Start, Timed},
    timeline::StreamTimeline,
};

impl Timed for Event {
    fn since(&self, start: &Self) -> Option<Duration> {
        // An error leaves the operation unmeasured, which its report shows.
        self.elapsed_since(start).ok()
    }
}

impl StreamTimeline {
    fn take_event(&self, timing: EventTiming) -> Result<Arc<Event>, DriverError> {
        let spare = self.events.take_event(timing == EventTiming::Enabled);
        spare.map_or_else(|| Event::new(self.context(), timing).map(Arc::new), Ok)
    }

    /// Polls an old point, so that transfers without a waiter do not accumulate.
    #[inline]
    fn poll_stale(&self, old: Option<u64>) {
        if let Some(old) = old {
            let _told_to_who_asks = self.poll(old);
        }
    }

    /// Records the start event of a timed operation.
    pub(crate) fn record_start(&self, asked_for: bool, counted: bool) -> Result<Start<Event>, DriverError> {
        let event = self.take_event(EventTiming::Enabled)?;
        event.record(self.stream())?;
        Ok(Start { event, asked_for, counted })
    }

    /// Issues a point for work that the driver has accepted and records its event. Before enqueueing anything but a
    /// small copy or fill, call [`flush_batch`](Self::flush_batch): otherwise waiters of the batch would wait for
    /// that operation too.
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

    /// Issues a point for everything enqueued before, also by other code.
    pub(crate) fn record_fence(&self) -> Result<u64, DriverError> {
        let point = self.record_end(None, "fence of everything before it")?;
        self.metrics.count_fence();
        Ok(point)
    }

    /// Issues a point for a small operation that the driver has accepted, usually without an event.
    #[inline]
    pub(crate) fn next_small_point(&self) -> Result<u64, DriverError> {
        let (point, close) = self.events.points.issue_small();
        if close {
            self.flush_batch()?;
        }
        Ok(point)
    }

    /// Records an event for all points without one. Blocks only if the calling thread cannot record on this stream.
    #[inline]
    pub(crate) fn flush_batch(&self) -> Result<(), DriverError> {
        if self.events.points.batch_is_open() { self.record_batch() } else { Ok(()) }
    }

    #[inline(never)]
    fn record_batch(&self) -> Result<(), DriverError> {
        if self.is_captured() {
            // The points stay open until the capture is over.
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

    /// Records an event for all points without one. Polls nothing.
    pub(crate) fn record_late(&self) -> Result<Option<u64>, DriverError> {
        let end = self.take_event(EventTiming::Disabled)?;
        self.events.close(end, |end| end.record(self.stream()))
    }

    /// Marks the handle as exposed: from now on every operation has its own event.
    pub(crate) fn share(&self) {
        if !self.events.points.is_shared() {
            self.events.points.share();
        }
        // Also if another thread has just exposed it, and has not ended the batch yet.
        if let Err(error) = self.flush_batch() {
            report::call_failed("a fence may also wait for work of the raw handle", self.device, &error);
        }
    }

    /// Returns the state of a point, recording an event if it has none. After an error its work is complete.
    pub(crate) fn cover(&self, point: u64) -> Result<PointState<Event>> {
        let covered = self.events.pending.lock().covering(point);
        if !matches!(covered, PointState::Unrecorded) {
            return Ok(covered);
        }
        self.flush_batch().map_err(|error| self.resolve_unrecorded_error(error))?;
        Ok(self.events.pending.lock().covering(point))
    }

    /// Makes later work of this stream wait for a fence, on the device. Returns whether a wait was needed, or `None`
    /// for a fence of another backend.
    pub(crate) fn wait_for_fence(&self, fence: &Fence) -> Option<Result<bool>> {
        let other = fence.timeline().as_any().downcast_ref::<Self>()?;
        // Work of one stream is ordered already.
        Some(if std::ptr::eq(other, self) { Ok(false) } else { self.wait_for(other, fence.point()) })
    }

    /// Makes later work of this stream wait for `point` of another one, on the device. Returns whether a wait was
    /// needed: not if the point is complete or covered by an earlier wait.
    pub(crate) fn wait_for(&self, other: &Self, point: u64) -> Result<bool> {
        if other.reached() >= point || self.events.pending.lock().waits_for(other.id(), point) {
            return Ok(false);
        }
        let (event, upto) = match other.cover(point) {
            Ok(PointState::Pending(event, upto)) => (event, upto),
            // After an error the work is complete too.
            Ok(PointState::Complete) | Err(_) => return Ok(false),
            // Only a capture leaves a point without an event.
            Ok(PointState::Unrecorded) => {
                return match other.check_not_captured() {
                    Err(error) => Err(error),
                    Ok(()) => other.wait(point).map(|()| false),
                };
            }
        };
        // Waiters of the open batch must not wait for the other stream.
        self.flush_batch().map_err(|error| self.lift(error))?;
        match self.measured_wait((other.id(), point), || self.stream().wait_event(&event)) {
            Ok(()) => {
                self.events.pending.lock().note_wait(other.id(), upto);
                Ok(true)
            }
            // If the other device is lost, its work is complete and this stream is intact.
            Err(_) if other.poll(point).is_err() => Ok(false),
            Err(error) => Err(self.lift(error)),
        }
    }
}
