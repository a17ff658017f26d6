//! The end of what a stream has done by the time at which a capture of it is over: no event can be recorded before.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, next_timeline_id};

use crate::CudaStream;

/// A timeline of one point.
pub(crate) struct AfterCapture {
    id: TimelineId,
    stream: CudaStream,
    /// The fence, from when it could be had.
    behind: OnceLock<Fence>,
    is_lost: AtomicBool,
}

impl AfterCapture {
    /// A fence behind the capture of `stream` and everything else on it.
    pub(crate) fn of(stream: CudaStream) -> Fence {
        let (behind, is_lost) = (OnceLock::new(), AtomicBool::new(false));
        Fence::new(Arc::new(Self { id: next_timeline_id(), stream, behind, is_lost }), 1)
    }

    /// Whether it is of this stream.
    pub(crate) fn is_of(&self, stream: TimelineId) -> bool {
        self.stream.id() == stream
    }

    /// The fence, once nobody captures the stream.
    fn behind(&self) -> Result<Option<&Fence>> {
        if let Some(fence) = self.behind.get() {
            return Ok(Some(fence));
        }
        match self.stream.fence() {
            Ok(fence) => Ok(Some(self.behind.get_or_init(|| fence))),
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                self.is_lost.store(true, Ordering::Release);
                Err(error)
            }
            // It says nothing about the work: asked again later.
            Err(_) => Ok(None),
        }
    }
}

// SAFETY: its one point is reached when the capture is over and the work behind it as well.
unsafe impl Timeline for AfterCapture {
    fn id(&self) -> TimelineId {
        self.id
    }

    /// The host's: a thread ends the capture, perhaps the very one that is short of memory meanwhile.
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        let over = self.behind.get().is_some_and(Fence::is_known_complete);
        u64::from(over || self.is_lost.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        match self.behind()? {
            Some(fence) => fence.timeline().poll(fence.point()),
            None => Ok(false),
        }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        loop {
            if let Some(fence) = self.behind()? {
                return fence.wait();
            }
            std::thread::yield_now();
        }
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        if transload_core::mutant!("streams/capture-holds-drain") || self.behind.get().is_some() {
            return None;
        }
        self.stream.own.check_not_captured().err().filter(|error| error.kind() == ErrorKind::Busy)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if !matches!(self.poll(point), Ok(false)) {
            return true;
        }
        // Nobody tells when a capture ends; who awaits that asks again and again.
        waker.wake_by_ref();
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
