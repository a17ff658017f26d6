//! The records of a user event, as a timeline: point *n* is its *n*-th record.

use std::{
    any::Any,
    sync::atomic::{AtomicU64, Ordering},
    task::Waker,
};

use transload_core::{DeviceId, Result, Timeline, TimelineId, next_timeline_id};
use transload_cuda_sys::{AsStream, DriverError, Event};
use transload_memory::lift;

use super::error_recovery::Backoff;

/// An event and the number of its records. The driver only knows the last one, so an earlier record that was not seen
/// complete counts as complete with the last one.
#[derive(Debug)]
pub(crate) struct EventTimeline {
    id: TimelineId,
    device: DeviceId,
    event: Event,
    records: AtomicU64,
    reached: AtomicU64,
}

impl EventTimeline {
    pub(crate) fn new(event: Event, device: DeviceId) -> Self {
        let [records, reached] = [0, 0].map(AtomicU64::new);
        Self { id: next_timeline_id(), device, event, records, reached }
    }

    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Acquire)
    }

    pub(crate) fn record(&self, stream: &impl AsStream) -> Result<(), DriverError> {
        self.event.record(stream)?;
        self.records.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Handles the result of a query or wait that began after `records` records.
    fn note(&self, records: u64, done: Result<bool, DriverError>) -> Result<bool> {
        match done {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.reached.fetch_max(records, Ordering::AcqRel);
                Ok(true)
            }
            // A lost device does no work any more.
            Err(error) if error.is_sticky() => {
                self.reached.store(u64::MAX, Ordering::Release);
                Err(lift(error))
            }
            // Says nothing about the work: the event was recorded into a capture, for example.
            Err(_) => Ok(false),
        }
    }
}

// SAFETY: a point is reached when the event is complete after a query that saw this record or a later one.
unsafe impl Timeline for EventTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        // Read before the query: it sees these records.
        let records = self.records();
        if self.reached() >= point {
            return Ok(true);
        }
        self.note(records, self.event.is_done())
    }

    fn wait(&self, point: u64) -> Result<()> {
        let mut backoff = Backoff::default();
        while self.reached() < point {
            let records = self.records();
            if !self.note(records, self.event.synchronize().map(|()| true))? {
                backoff.pause();
            }
        }
        Ok(())
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if !matches!(self.poll(point), Ok(false)) {
            return true;
        }
        // No task of this library awaits a user event, so polling is enough.
        waker.wake_by_ref();
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
