//! A stream's timeline: which of its operations are over, found by asking their events.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, Result, StreamPriority, Timeline, TimelineId, next_timeline_id};
use transload_cuda_sys::{
    AsStream, Context, DriverError, Event, EventTiming, RawStream, RelaxedCapture, Stream,
};
use transload_memory::lift;

use crate::{allocator::ending::Endings, kernels::Kernels, line::Line, reactor::Reactor};

/// How often a stream that answers nothing but errors is asked before it counts as dead.
const ATTEMPTS: u32 = 100_000;

/// A stream and the completion of what was enqueued on it.
pub(crate) struct StreamTimeline {
    id: TimelineId,
    device: DeviceId,
    pub(crate) priority: StreamPriority,
    stream: Stream,
    /// Number of the last operation recorded.
    submitted: AtomicU64,
    reached: AtomicU64,
    line: Mutex<Line>,
    /// Held while an event is recorded and marked, so that points stay in the order of their events. Whoever only asks
    /// takes the line's lock, which is never held across a call into the driver that could wait for room.
    recording: Mutex<()>,
    wakers: Mutex<Vec<(u64, Waker)>>,
    /// How many leases share the stream.
    pub(crate) leases: AtomicUsize,
    /// The first error of the stream's work. The context is unusable from then on.
    broken: OnceLock<Error>,
    /// Our own kernels, once one was asked for.
    kernels: OnceLock<Arc<Kernels>>,
    reactor: &'static Reactor,
    /// Who is told before the stream is destroyed.
    pub(crate) endings: Endings,
    this: Weak<Self>,
}

impl StreamTimeline {
    pub(crate) fn new(device: DeviceId, priority: StreamPriority, stream: Stream) -> Result<Arc<Self>> {
        let reactor = Reactor::get()?;
        Ok(Arc::new_cyclic(|this| Self {
            id: next_timeline_id(),
            device,
            priority,
            stream,
            submitted: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            line: Mutex::default(),
            recording: Mutex::default(),
            wakers: Mutex::default(),
            leases: AtomicUsize::new(0),
            broken: OnceLock::new(),
            kernels: OnceLock::new(),
            reactor,
            endings: Endings::default(),
            this: Weak::clone(this),
        }))
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn raw(&self) -> RawStream {
        self.stream.as_raw()
    }

    pub(crate) fn context(&self) -> &Context {
        self.stream.context()
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed).saturating_sub(self.reached.load(Ordering::Relaxed))
    }

    /// The error that made the stream unusable, if any did.
    pub(crate) fn check(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn take_event(&self, timing: EventTiming) -> Result<Arc<Event>, DriverError> {
        let spare = self.line.lock().take_spare(timing);
        spare.map_or_else(|| Event::new(self.context(), timing).map(Arc::new), Ok)
    }

    /// The kernels of the stream's context; the first call may have to load them.
    pub(crate) fn kernels(&self) -> Result<&Kernels> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let found = Kernels::of(self.context())?;
        Ok(self.kernels.get_or_init(|| found))
    }

    /// Records the event that a measured operation's time counts from.
    pub(crate) fn record_start(&self) -> Result<Arc<Event>, DriverError> {
        let event = self.take_event(EventTiming::Enabled)?;
        event.record(&self.stream)?;
        Ok(event)
    }

    /// Marks the end of what was enqueued so far as the next point.
    pub(crate) fn record_end(&self, start: Option<Arc<Event>>) -> Result<u64, DriverError> {
        // Transfers that nobody waits for must not pile up.
        let oldest = self.line.lock().oldest_of_many();
        if let Some(oldest) = oldest {
            let _told_to_who_asks = self.poll(oldest);
        }
        let timing = if start.is_some() { EventTiming::Enabled } else { EventTiming::Disabled };
        let end = self.take_event(timing)?;
        let _in_order = self.recording.lock();
        end.record(&self.stream)?;
        let point = self.submitted.load(Ordering::Relaxed) + 1;
        self.line.lock().push(point, end, start);
        self.submitted.store(point, Ordering::Release);
        Ok(point)
    }

    /// Makes later work of this stream wait for `point` of another one, on the device.
    pub(crate) fn wait_for(&self, other: &Self, point: u64) -> Result<()> {
        if other.reached() >= point || self.line.lock().waits_for(other.id, point) {
            return Ok(());
        }
        let event = other.line.lock().event_at(point);
        let Some(event) = event else { return Ok(()) };
        match self.stream.wait_event(&event) {
            Ok(()) => {
                self.line.lock().note_wait(other.id, point);
                Ok(())
            }
            // Where the other device is lost, its work is over and this stream is well.
            Err(_) if other.poll(point).is_err() => Ok(()),
            Err(error) => Err(lift(error)),
        }
    }

    /// Blocks until everything enqueued so far is over, and takes note of it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.check()?;
        let point = self.submitted.load(Ordering::Acquire);
        match self.stream.synchronize() {
            Ok(()) => {
                self.advance(point);
                Ok(())
            }
            Err(error) => Err(self.settle(point, error)),
        }
    }

    fn advance(&self, point: u64) {
        self.line.lock().advance_to(point);
        self.reached.fetch_max(point, Ordering::Release);
    }

    /// What an error of a question or a wait means. A broken context runs nothing any more. Any other error says nothing
    /// about the work, which may still run and use memory: it is waited for, however often that takes asking.
    fn settle(&self, point: u64, error: DriverError) -> Error {
        let mut latest = error;
        for _ in 0..ATTEMPTS {
            if latest.is_sticky() {
                return self.give_up(latest);
            }
            match self.stream.synchronize() {
                Ok(()) => {
                    self.advance(point);
                    return lift(latest);
                }
                Err(error) => latest = error,
            }
            std::thread::yield_now();
        }
        // No answer at all for so long: the device does nothing any more.
        self.give_up(latest)
    }

    /// As [`settle`](Self::settle), for work that was enqueued without an event behind it.
    pub(crate) fn settle_unmarked(&self, error: DriverError) -> Error {
        let point = self.submitted.load(Ordering::Acquire);
        self.settle(point, error)
    }

    /// After an error nothing of the stream runs any more: every point counts as reached, so that memory is reclaimed.
    fn give_up(&self, error: DriverError) -> Error {
        let error = self.broken.get_or_init(|| lift(error)).clone();
        self.reached.store(u64::MAX, Ordering::Release);
        error
    }

    /// A small copy is over before a sleeping thread wakes up: where the reactor sleeps, asking for a moment is cheaper
    /// for everyone. While it is awake nobody asks here, so that a thousand tasks do not add up their moments.
    fn ask_for_a_moment(&self, point: u64) -> bool {
        const MOMENT: Duration = Duration::from_micros(10);
        let begun = Instant::now();
        while begun.elapsed() < MOMENT {
            if !matches!(self.poll(point), Ok(false)) {
                return true;
            }
        }
        false
    }

    fn event_at(&self, point: u64) -> Option<Arc<Event>> {
        self.line.lock().event_at(point)
    }

    /// Whether the point was over before the stream broke.
    fn ended_well(&self, point: u64) -> Result<bool> {
        match self.broken.get() {
            Some(error) if self.line.lock().event_at(point).is_some() => Err(error.clone()),
            _ => Ok(true),
        }
    }

    /// Whether a task waits for any point.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.wakers.lock().is_empty()
    }

    /// Asks the driver; wakes whoever waits for what is over. Answers whether someone still waits. For the reactor.
    pub(crate) fn wake_what_is_over(&self, woken: &mut Vec<Waker>) -> bool {
        let next = self.wakers.lock().iter().map(|(point, _)| *point).min();
        let Some(next) = next else { return false };
        if matches!(self.poll(next), Ok(false)) {
            return true;
        }
        let reached = self.reached();
        let mut wakers = self.wakers.lock();
        let mut index = 0;
        while let Some((point, _)) = wakers.get(index) {
            if *point <= reached { woken.push(wakers.swap_remove(index).1) } else { index += 1 }
        }
        !wakers.is_empty()
    }
}

impl Drop for StreamTimeline {
    fn drop(&mut self) {
        self.endings.tell(self.id, &self.stream);
        let Some(kernels) = self.kernels.get() else { return };
        let idle = RelaxedCapture::enter().and_then(|_capture| self.stream.is_idle());
        if !matches!(idle, Ok(true)) {
            kernels.leave_running();
        }
    }
}

impl Timeline for StreamTimeline {
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
        if self.reached() >= point {
            return self.ended_well(point);
        }
        let Some(event) = self.event_at(point) else { return self.ended_well(point) };
        match event.is_done() {
            Ok(false) => Ok(false),
            Ok(true) => {
                drop(event);
                self.advance(point);
                Ok(true)
            }
            Err(error) => Err(self.settle(point, error)),
        }
    }

    fn wait(&self, point: u64) -> Result<()> {
        if self.reached() >= point {
            return self.ended_well(point).map(|_| ());
        }
        let Some(event) = self.event_at(point) else { return self.ended_well(point).map(|_| ()) };
        match event.synchronize() {
            Ok(()) => {
                drop(event);
                self.advance(point);
                Ok(())
            }
            Err(error) => Err(self.settle(point, error)),
        }
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if self.reached() >= point || (self.reactor.is_idle() && self.ask_for_a_moment(point)) {
            return true;
        }
        {
            let mut wakers = self.wakers.lock();
            match wakers.iter_mut().find(|(at, known)| *at == point && known.will_wake(waker)) {
                Some(_) => {}
                None => wakers.push((point, waker.clone())),
            }
        }
        if let Some(this) = self.this.upgrade() {
            self.reactor.watch(this);
        }
        false
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        Ok(self.line.lock().take_duration(point))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
