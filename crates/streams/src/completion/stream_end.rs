//! The end of a destroyed stream's work, as a fence.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use parking_lot::Mutex;
use transload_core::{
    DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, events::report, next_timeline_id,
};
use transload_cuda_sys::{AsStream, Event, EventTiming, Stream};
use transload_memory::lift;

use super::{
    capture_state::is_captured,
    error_recovery::{Backoff, is_capture_error},
    reactor::Reactor,
    waiters::{Waiters, Watched},
};
use crate::stream::handle::StreamHandle;

/// A timeline with one point: the end of all work of a destroyed stream.
pub(crate) struct StreamEnd {
    id: TimelineId,
    /// The stream's identity.
    pub(crate) of: TimelineId,
    device: DeviceId,
    /// Recorded after the work. Unset if that was complete, or waited for because recording failed.
    event: OnceLock<Event>,
    /// The stream, if its end could not be recorded: the event is recorded once a capture is over, or the driver takes it.
    captured: Mutex<Option<Arc<StreamHandle>>>,
    complete: AtomicBool,
    waiters: Waiters,
}

/// How the end of a stream's work is known.
enum EndState {
    Complete,
    Recorded(Event),
}

/// Records the end of all work on `stream`. Returns `None` if that failed, for example during a capture.
fn record_end(stream: &Stream, may_wait: bool) -> Option<EndState> {
    // A query would invalidate the capture, and an event recorded into a capture never completes.
    if is_captured(stream) {
        return None;
    }
    if stream.is_idle().is_ok_and(|is_idle| is_idle) {
        return Some(EndState::Complete);
    }
    let event = Event::new(stream.context(), EventTiming::Disabled);
    match event.and_then(|event| event.record(stream).map(|()| event)) {
        // A capture may have begun meanwhile, and may be over again.
        Ok(_) if is_captured(stream) => None,
        Ok(event) => match event.is_done() {
            Err(error) if is_capture_error(&error) => None,
            _ => Some(EndState::Recorded(event)),
        },
        Err(error) => match stream.context().judge(error) {
            error if error.is_sticky() => Some(EndState::Complete),
            error if may_wait => {
                let device = DeviceId::Cuda(stream.context().device().ordinal());
                report::call_failed("waiting for a stream instead of a fence", device, &error);
                match stream.synchronize() {
                    Err(error) if !error.is_sticky() => None,
                    _ => Some(EndState::Complete),
                }
            }
            _ => None,
        },
    }
}

impl StreamEnd {
    /// Records the end of all work on `stream`.
    pub(crate) fn of(id: TimelineId, stream: &Arc<StreamHandle>) -> Arc<Self> {
        /// Tries to record it. A driver that refuses more often is asked again when somebody asks for the end.
        const TRIES: u32 = 8;
        let (mut backoff, mut tries) = (Backoff::default(), 0);
        loop {
            tries += 1;
            let state = record_end(stream, true);
            if state.is_some() || is_captured(stream) || tries >= TRIES {
                let captured = state.is_none().then(|| Arc::clone(stream));
                let end = Self::new(id, stream, captured);
                end.set(state);
                return end;
            }
            backoff.rest();
        }
    }

    /// Returns the end of a stream whose work is complete.
    pub(crate) fn complete(id: TimelineId, stream: &Stream) -> Arc<Self> {
        let end = Self::new(id, stream, None);
        end.set(Some(EndState::Complete));
        end
    }

    fn new(of: TimelineId, stream: &Stream, captured: Option<Arc<StreamHandle>>) -> Arc<Self> {
        let device = DeviceId::Cuda(stream.context().device().ordinal());
        let (event, complete, captured) = (OnceLock::new(), AtomicBool::new(false), Mutex::new(captured));
        Arc::new_cyclic(|this| {
            let waiters = Waiters::new(Weak::<Self>::clone(this), 0);
            Self { id: next_timeline_id(), of, device, event, captured, complete, waiters }
        })
    }

    fn set(&self, state: Option<EndState>) {
        match state {
            Some(EndState::Complete) => self.complete.store(true, Ordering::Release),
            Some(EndState::Recorded(event)) => drop(self.event.set(event)),
            None => {}
        }
    }

    /// Records the end if a capture prevented that before.
    fn retry_record(&self, may_wait: bool) {
        if !self.is_unrecorded() {
            return;
        }
        let Some(stream) = self.captured.lock().clone() else { return };
        self.set(record_end(&stream, may_wait));
        if !self.is_unrecorded() {
            // The stream is destroyed now, and its owner dropped.
            let done = self.captured.lock().take();
            drop((stream, done));
        }
    }

    /// Returns whether the end is not recorded yet because of a capture.
    pub(crate) fn is_unrecorded(&self) -> bool {
        self.event.get().is_none() && !self.is_known_complete()
    }

    pub(crate) fn event(&self) -> Option<&Event> {
        self.event.get().filter(|_| !self.is_known_complete())
    }

    pub(crate) fn is_known_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    pub(crate) fn fence(self: &Arc<Self>) -> Fence {
        Fence::new(Arc::clone(self) as Arc<dyn Timeline>, 1)
    }
}

impl Watched for StreamEnd {
    fn wake_reached(&self, woken: &mut Vec<Waker>) -> bool {
        if self.waiters.first().is_none() {
            return false;
        }
        if matches!(self.poll(1), Ok(false)) { true } else { self.waiters.take_reached(1, woken) }
    }
}

// SAFETY: its point is reached when the event recorded after all work of the stream is complete.
unsafe impl Timeline for StreamEnd {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        u64::from(self.is_known_complete())
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        self.retry_record(false);
        let Some(event) = self.event() else { return Ok(self.is_known_complete()) };
        match event.is_done() {
            Ok(done) => {
                self.complete.fetch_or(done, Ordering::Release);
                Ok(done)
            }
            Err(error) => match event.context().judge(error) {
                error if error.is_sticky() => {
                    self.complete.store(true, Ordering::Release);
                    Err(lift(error))
                }
                // Says nothing about the work, so it is not complete yet.
                _ => Ok(false),
            },
        }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        let mut first = Ok(());
        let mut backoff = Backoff::default();
        while !self.is_known_complete() {
            self.retry_record(true);
            let Some(event) = self.event() else {
                backoff.rest();
                continue;
            };
            match event.synchronize() {
                Ok(()) => self.complete.store(true, Ordering::Release),
                Err(error) => {
                    let error = backoff.pause(event.context(), error);
                    if error.is_sticky() {
                        self.complete.store(true, Ordering::Release);
                        first = Err(error);
                    } else {
                        first = first.and(Err(error));
                    }
                }
            }
        }
        first.map_err(lift)
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        self.retry_record(false);
        let stream = self.captured.lock().clone();
        let stream = stream.filter(|stream| self.is_unrecorded() && is_captured(stream));
        stream.map(|_| Error::new(ErrorKind::Busy, "the stream is being captured into a graph"))
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if !matches!(self.poll(point), Ok(false)) {
            return true;
        }
        match Reactor::get() {
            Ok(reactor) => self.waiters.add(reactor, point, waker),
            // Without its thread there are no streams.
            Err(_) => waker.wake_by_ref(),
        }
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
