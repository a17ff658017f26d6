//! The end of a stream: whoever keeps something in its order is told before it is destroyed, while an event can be recorded.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, next_timeline_id};
use transload_cuda_sys::{AsStream, Event, EventTiming, Stream};
use transload_memory::lift;

use super::{
    capture_state::is_captured,
    error_recovery::{Attempts, is_of_a_capture},
};

/// A timeline of one point: the end of all work of a stream that is gone.
pub(crate) struct EndOfStream {
    id: TimelineId,
    /// The stream.
    pub(crate) of: TimelineId,
    device: DeviceId,
    /// Behind the work. None where that was over, or waited for because nothing could be recorded.
    event: OnceLock<Event>,
    /// The stream, where someone captured it when it ended: the event is recorded once the capture is over.
    captured: Option<Arc<Stream>>,
    over: AtomicBool,
}

/// What tells of the end of a stream's work.
enum Mark {
    Over,
    Behind(Event),
}

/// Marks the end of everything enqueued on `stream`. Answers `None` where nothing could, as while someone captures it.
fn mark(stream: &Stream, may_wait: bool) -> Option<Mark> {
    // To ask it would break the capture, and an event that is recorded into one never tells anything.
    if is_captured(stream) {
        return None;
    }
    if stream.is_idle().is_ok_and(|is_idle| is_idle) {
        return Some(Mark::Over);
    }
    let event = Event::new(stream.context(), EventTiming::Disabled);
    match event.and_then(|event| event.record(stream).map(|()| event)) {
        // Someone may have begun a capture meanwhile, which may be over again.
        Ok(_) if is_captured(stream) => None,
        Ok(event) => match event.is_done() {
            Err(error) if is_of_a_capture(&error) => None,
            _ => Some(Mark::Behind(event)),
        },
        Err(error) if error.is_sticky() => Some(Mark::Over),
        Err(_) if may_wait => match stream.synchronize() {
            Err(error) if !error.is_sticky() => None,
            _ => Some(Mark::Over),
        },
        Err(_) => None,
    }
}

impl EndOfStream {
    /// Marks the end of everything enqueued on `stream`.
    pub(crate) fn of(id: TimelineId, stream: &Arc<Stream>) -> Arc<Self> {
        let mut attempts = Attempts::default();
        loop {
            let mark = mark(stream, true);
            if mark.is_some() || is_captured(stream) {
                let captured = mark.is_none().then(|| Arc::clone(stream));
                let end = Self::new(id, stream, captured);
                end.take(mark);
                return Arc::new(end);
            }
            attempts.pause();
        }
    }

    /// Of a stream whose work is over.
    pub(crate) fn over(id: TimelineId, stream: &Stream) -> Arc<Self> {
        let end = Self::new(id, stream, None);
        end.take(Some(Mark::Over));
        Arc::new(end)
    }

    fn new(of: TimelineId, stream: &Stream, captured: Option<Arc<Stream>>) -> Self {
        let device = DeviceId::Cuda(stream.context().device().ordinal());
        let (event, over) = (OnceLock::new(), AtomicBool::new(false));
        Self { id: next_timeline_id(), of, device, event, captured, over }
    }

    fn take(&self, mark: Option<Mark>) {
        match mark {
            Some(Mark::Over) => self.over.store(true, Ordering::Release),
            Some(Mark::Behind(event)) => drop(self.event.set(event)),
            None => {}
        }
    }

    /// Marks the end if a capture stood in the way and is over.
    fn look(&self, may_wait: bool) {
        if let Some(stream) = self.captured.as_ref().filter(|_| self.is_unmarked()) {
            self.take(mark(stream, may_wait));
        }
    }

    /// Whether nothing tells of the end yet, since someone captured the stream when it ended.
    pub(crate) fn is_unmarked(&self) -> bool {
        self.event.get().is_none() && !self.is_known_over()
    }

    pub(crate) fn event(&self) -> Option<&Event> {
        self.event.get().filter(|_| !self.is_known_over())
    }

    pub(crate) fn is_known_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn fence(self: &Arc<Self>) -> Fence {
        Fence::new(Arc::clone(self) as Arc<dyn Timeline>, 1)
    }
}

// SAFETY: its one point is over when the event is that was recorded behind all work of the stream.
unsafe impl Timeline for EndOfStream {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        u64::from(self.is_known_over())
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        self.look(false);
        let Some(event) = self.event() else { return Ok(self.is_known_over()) };
        match event.is_done() {
            Ok(done) => {
                self.over.fetch_or(done, Ordering::Release);
                Ok(done)
            }
            Err(error) if error.is_sticky() => {
                self.over.store(true, Ordering::Release);
                Err(lift(error))
            }
            // It says nothing about the work, so it is not over yet.
            Err(_) => Ok(false),
        }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        let mut first = Ok(());
        let mut attempts = Attempts::default();
        while !self.is_known_over() {
            self.look(true);
            match self.event().map(Event::synchronize) {
                Some(Err(error)) => {
                    self.over.fetch_or(error.is_sticky(), Ordering::Release);
                    first = first.and(Err(error));
                    attempts.pause();
                }
                Some(Ok(())) => self.over.store(true, Ordering::Release),
                None => attempts.pause(),
            }
        }
        first.map_err(lift)
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        self.look(false);
        let stream = self.captured.as_ref().filter(|stream| self.is_unmarked() && is_captured(stream));
        stream.map(|_| Error::new(ErrorKind::Busy, "someone captures the stream into a graph"))
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if !matches!(self.poll(point), Ok(false)) {
            return true;
        }
        // No task of this library awaits the end of a stream; one that does asks again and again.
        waker.wake_by_ref();
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
