//! The end of a stream: whoever keeps something in its order is told before it is destroyed, while an event can be recorded.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, next_timeline_id};
use transload_cuda_sys::{AsStream, DriverError, Event, EventTiming, Stream};
use transload_memory::lift;

use super::arenas::Arenas;
use crate::{captured::is_captured, loss::is_of_a_capture};

/// How often a stream that answers nothing but errors is asked before it counts as dead.
const ATTEMPTS: u32 = 10_000;

/// The allocators that are told of a stream's end. Kept alive by this: of an allocator that goes at the same moment, each side
/// would else find the other gone already, and nobody would know of the stream's work.
#[derive(Default)]
pub(crate) struct Endings {
    told: Mutex<Vec<Arc<Arenas>>>,
}

impl Endings {
    /// Adds an allocator, which knows the stream already, to those that are told of the end of stream `id`, which this is of.
    pub(crate) fn add(&self, id: TimelineId, arenas: Arc<Arenas>) {
        // Dropped after the lock.
        let mut closed = Vec::new();
        let mut told = self.told.lock();
        // Once is enough for one that was there before the stream was released.
        let is_out = |known: &mut Arc<Arenas>| Arc::ptr_eq(known, &arenas) || known.find(id).is_none();
        closed.extend(told.extract_if(.., is_out));
        told.push(arenas);
        drop(told);
    }

    /// `stream` is destroyed with its last reference; nobody else can use it.
    pub(crate) fn tell(&self, id: TimelineId, stream: &Arc<Stream>) {
        let told = std::mem::take(&mut *self.told.lock());
        // Dropped when all were told: it may be the last handle of anything.
        let left: Vec<_> = told.iter().map(|arenas| arenas.stream_ends(id, stream)).collect();
        drop((left, told));
    }
}

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

impl EndOfStream {
    /// Marks the end of everything enqueued on `stream`.
    pub(crate) fn of(id: TimelineId, stream: &Arc<Stream>) -> Arc<Self> {
        // To ask it would break the capture, and an event that is recorded into one never tells anything.
        if is_captured(stream) {
            return Self::new(id, stream, Some(Arc::clone(stream)), false);
        }
        let is_over = stream.is_idle().is_ok_and(|is_idle| is_idle);
        let end = Self::new(id, stream, None, is_over);
        if !is_over && let Err(error) = end.record(stream) {
            wait_out(error, || stream.synchronize());
            end.over.store(true, Ordering::Release);
        }
        end
    }

    /// Of a stream whose work is over.
    pub(crate) fn over(id: TimelineId, stream: &Stream) -> Arc<Self> {
        Self::new(id, stream, None, true)
    }

    fn new(of: TimelineId, stream: &Stream, captured: Option<Arc<Stream>>, is_over: bool) -> Arc<Self> {
        let device = DeviceId::Cuda(stream.context().device().ordinal());
        let (event, over) = (OnceLock::new(), AtomicBool::new(is_over));
        Arc::new(Self { id: next_timeline_id(), of, device, event, captured, over })
    }

    fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        let event = Event::new(stream.context(), EventTiming::Disabled)?;
        event.record(stream)?;
        let _earlier_one_will_do = self.event.set(event);
        Ok(())
    }

    /// Records the event if a capture stood in its way and is over.
    fn look(&self) {
        if self.is_captured()
            && let Some(stream) = self.captured.as_ref().filter(|stream| !is_captured(stream))
            && let Err(error) = self.record(stream)
            && error.is_sticky()
        {
            self.over.store(true, Ordering::Release);
        }
    }

    /// Whether someone's capture stood in the way of the event when the driver was asked last.
    pub(crate) fn is_captured(&self) -> bool {
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

/// After an error that says nothing about the work, asks until the work is over or the context is known to be lost.
fn wait_out(error: DriverError, wait: impl Fn() -> Result<(), DriverError>) {
    let mut latest = error;
    let mut attempts = 0;
    while attempts < ATTEMPTS {
        if latest.is_sticky() {
            return;
        }
        // An answer about someone's capture is no silence of the device.
        attempts += u32::from(!is_of_a_capture(&latest));
        match wait() {
            Ok(()) => return,
            Err(error) => latest = error,
        }
        std::thread::yield_now();
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
        self.look();
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
        let event = loop {
            self.look();
            match self.event() {
                Some(event) => break event,
                None if self.is_known_over() => return Ok(()),
                None => std::thread::yield_now(),
            }
        };
        let waited = event.synchronize();
        if let Err(error) = &waited {
            wait_out(error.clone(), || event.synchronize());
        }
        self.over.store(true, Ordering::Release);
        waited.map_err(lift)
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        self.look();
        let busy = || Error::new(ErrorKind::Busy, "someone captures the stream into a graph");
        self.is_captured().then(busy)
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
