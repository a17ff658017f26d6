//! A fence for all work of a captured stream. Its event can be recorded only when the capture is over.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, next_timeline_id};

use super::waiters::{Waiters, Watched};
use crate::CudaStream;

/// A timeline with one point: the end of the stream's work after the capture.
pub(crate) struct AfterCapture {
    id: TimelineId,
    stream: CudaStream,
    /// The fence, once it could be recorded.
    after: OnceLock<Fence>,
    is_lost: AtomicBool,
    /// Tasks that wait for the end of the capture, and then for the fence.
    waiters: Waiters,
}

impl AfterCapture {
    /// Returns a fence for the end of the capture and everything else on `stream`.
    pub(crate) fn of(stream: CudaStream) -> Fence {
        let timeline = Arc::new_cyclic(|this| Self {
            id: next_timeline_id(),
            stream,
            after: OnceLock::new(),
            is_lost: AtomicBool::new(false),
            waiters: Waiters::new(Weak::<Self>::clone(this), 0),
        });
        Fence::new(timeline, 1)
    }

    /// Returns whether it belongs to this stream.
    pub(crate) fn is_of(&self, stream: TimelineId) -> bool {
        self.stream.id() == stream
    }

    /// Returns the fence once the capture is over.
    fn after(&self) -> Result<Option<&Fence>> {
        if let Some(fence) = self.after.get() {
            return Ok(Some(fence));
        }
        match self.stream.fence() {
            Ok(fence) => Ok(Some(self.after.get_or_init(|| fence))),
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                self.is_lost.store(true, Ordering::Release);
                Err(error)
            }
            // Says nothing about the work; retried later.
            Err(_) => Ok(None),
        }
    }
}

impl Watched for AfterCapture {
    fn wake_reached(&self, woken: &mut Vec<Waker>) -> bool {
        if self.waiters.first().is_none() {
            return false;
        }
        // They then record the fence and register with the stream itself. Recording may wait for old work, and this thread serves all
        // streams.
        let is_over = !self.stream.own.is_captured();
        if is_over { self.waiters.take_reached(1, woken) } else { true }
    }
}

// SAFETY: its point is reached when the capture is over and the work after it is complete.
unsafe impl Timeline for AfterCapture {
    fn id(&self) -> TimelineId {
        self.id
    }

    /// The host: the capture is ended by a thread, possibly the one that is out of memory.
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        let over = self.after.get().is_some_and(Fence::is_known_complete);
        u64::from(over || self.is_lost.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        match self.after()? {
            Some(fence) => fence.poll(),
            None => Ok(false),
        }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        loop {
            if let Some(fence) = self.after()? {
                return fence.wait();
            }
            std::thread::yield_now();
        }
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        if transload_core::mutant!("streams/capture-holds-drain") || self.after.get().is_some() {
            return None;
        }
        self.stream.own.check_not_captured().err().filter(|error| error.kind() == ErrorKind::Busy)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        match self.after() {
            Ok(Some(fence)) => return fence.wake_at(waker),
            Ok(None) => {}
            Err(_) => return true,
        }
        // There is no notification of a capture's end.
        self.waiters.add(self.stream.own.reactor, point, waker);
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
#[path = "../../tests/unit/captured_ends.rs"]
mod tests;
