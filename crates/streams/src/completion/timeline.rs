//! A stream's timeline: which of its operations are over, found by asking their events.

use std::{
    any::Any,
    mem::ManuallyDrop,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use transload_core::{
    DeviceId, Error, ErrorKind, Result, StreamPriority, Timeline, TimelineId, catch_panic, next_timeline_id,
};
use transload_cuda_sys::{AsStream, Context, Driver, DriverError, Event, EventTiming, RawStream, Stream};
use transload_memory::lift;

use super::{
    callbacks::Callbacks,
    capture_state::is_captured,
    error_recovery::is_capture_error,
    pending_events::{Ended, PointState},
    reactor::{Reactor, StreamRegistration},
    registration::Registration,
    stream_events::StreamEvents,
    wakers::Wakers,
};
use crate::{allocator::destroy_hooks::DestroyHooks, stream::metrics::Counters, submit::kernels::Kernels};

/// Tasks that may wait for one stream before the list of them grows.
const TASKS: usize = 4;

/// A stream and the completion of what was enqueued on it. In this order what a small copy looks at lies together, behind the
/// count of handles.
#[repr(C)]
pub(crate) struct StreamTimeline {
    pub(crate) events: StreamEvents<Event>,
    /// The one thread in which the handle means this stream, for a per-thread default stream.
    thread: Option<ThreadId>,
    /// Taken when this is dropped: whoever keeps something in its order may need it for longer.
    stream: ManuallyDrop<Stream>,
    pub(crate) device: DeviceId,
    /// Whether the stream was put behind an event of someone's, which may have been part of a capture.
    pub(crate) joins: AtomicBool,
    /// The first error of the stream's work. The context is unusable from then on.
    pub(crate) broken: OnceLock<Error>,
    pub(crate) metrics: Counters,
    pub(crate) id: TimelineId,
    pub(crate) priority: StreamPriority,
    registration: Arc<StreamRegistration>,
    /// Our own kernels, once one was asked for.
    kernels: OnceLock<Arc<Kernels>>,
    /// The driver did not take them when a fill asked, which can do without.
    fills_without_kernels: AtomicBool,
    /// What runs at completion, once something was registered.
    pub(crate) callbacks: Arc<Callbacks>,
    reactor: &'static Reactor,
    /// Who is told before the stream is destroyed.
    pub(crate) destroy_hooks: DestroyHooks,
}

impl StreamTimeline {
    /// `is_shared`: someone else can use the stream's handle as well; with `thread` only in that one it means this stream.
    pub(crate) fn new(
        device: DeviceId,
        priority: StreamPriority,
        stream: Stream,
        is_shared: bool,
        thread: Option<ThreadId>,
    ) -> Result<Arc<Self>> {
        let reactor = Reactor::get()?;
        let spare = Event::new(stream.context(), EventTiming::Disabled).map(Arc::new).map_err(lift)?;
        Ok(Arc::new_cyclic(|this| Self {
            id: next_timeline_id(),
            device,
            priority,
            stream: ManuallyDrop::new(stream),
            thread,
            events: StreamEvents::new(is_shared, spare),
            registration: Arc::new(Registration::new(Weak::clone(this), Wakers::with_room(TASKS))),
            broken: OnceLock::new(),
            kernels: OnceLock::new(),
            fills_without_kernels: AtomicBool::new(false),
            callbacks: Arc::default(),
            metrics: Counters::default(),
            reactor,
            destroy_hooks: DestroyHooks::default(),
            joins: AtomicBool::new(false),
        }))
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The handle, for driver calls of this crate. Who gives it out calls [`share`](Self::share) before.
    #[inline]
    pub(crate) fn raw(&self) -> RawStream {
        self.stream.as_raw()
    }

    pub(crate) fn context(&self) -> &Context {
        self.stream.context()
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.events.points.outstanding()
    }

    /// A point such that the event of every later one is recorded after what is enqueued by now: points are given before
    /// their events are recorded.
    pub(crate) fn last_point(&self) -> u64 {
        self.events.points.issued()
    }

    /// The error that made the stream unusable, if any did.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether the handle means this stream in the calling thread.
    #[inline]
    pub(crate) fn is_usable_here(&self) -> bool {
        self.thread.is_none_or(|thread| thread == thread::current().id())
    }

    /// Whether only one thread can name the stream.
    pub(crate) fn is_per_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// As [`check`](Self::check), and whether the calling thread may use the stream at all.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.is_usable_here() { self.check() } else { Err(self.wrong_thread()) }
    }

    #[cold]
    fn wrong_thread(&self) -> Error {
        let text = format!(
            "this is the per-thread default stream of another thread; in {:?} its handle means another stream, so only the \
             thread that took it in may use it (waiting for its fences works from any thread)",
            thread::current().id()
        );
        Error::new(ErrorKind::InvalidArgument, text)
    }

    /// Blocks until the stream has done what is enqueued on it.
    pub(crate) fn synchronize_driver(&self) -> Result<(), DriverError> {
        // The handle cannot name the stream from here; waiting for the context takes in all of it.
        if self.is_usable_here() { self.stream.synchronize() } else { self.context().synchronize() }
    }

    /// The kernels of the stream's context; the first call may have to load them.
    pub(crate) fn kernels(&self) -> Result<&Kernels> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let found = Kernels::of(self.context())?;
        Ok(self.kernels.get_or_init(|| found))
    }

    /// As [`kernels`](Self::kernels); `None` where the driver does not take them, which is asked once.
    pub(crate) fn fill_kernels(&self) -> Result<Option<&Kernels>> {
        if self.fills_without_kernels.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.kernels() {
            Ok(kernels) => Ok(Some(kernels)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.fills_without_kernels.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Blocks until everything enqueued so far is over, and takes note of it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.check_not_captured()?;
        let point = self.events.points.issued();
        match self.stream.synchronize() {
            Ok(()) => {
                self.advance(point);
                Ok(())
            }
            Err(error) => Err(self.resolve_error(point, error)),
        }
    }

    pub(crate) fn advance(&self, point: u64) {
        self.events.advance(point);
    }

    /// A small copy is over before a sleeping thread wakes up: where the reactor sleeps, asking for a moment is cheaper
    /// for everyone. While it is awake nobody asks here, so that a thousand tasks do not add up their moments.
    fn spin_poll(&self, point: u64) -> bool {
        const MOMENT: Duration = Duration::from_micros(10);
        let begun = Instant::now();
        while begun.elapsed() < MOMENT {
            if !matches!(self.poll(point), Ok(false)) {
                return true;
            }
        }
        false
    }

    /// Whether the point was over before the stream broke.
    fn outcome_at(&self, point: u64) -> Result<bool> {
        match self.broken.get() {
            Some(error) if point > self.events.pending.lock().completed() => Err(error.clone()),
            _ => Ok(true),
        }
    }

    /// Asks the driver about a point, and makes nothing of its error. A point that no event covers yet, and that is not over,
    /// has one from here on.
    fn query(&self, point: u64) -> Result<bool, DriverError> {
        if self.events.points.reached() >= point {
            return Ok(true);
        }
        let covered = self.events.pending.lock().covering(point);
        match covered {
            PointState::Complete => Ok(true),
            PointState::Pending(event, upto) => {
                let over = event.is_done()?;
                drop(event);
                if over {
                    self.advance(upto);
                }
                Ok(over)
            }
            PointState::Unrecorded => {
                let given = self.events.points.issued();
                if point > given || !self.is_usable_here() {
                    // Over, well or not.
                    let _told_to_who_asks = self.wait_unrecorded(point);
                    return Ok(true);
                }
                if self.is_captured() {
                    return Ok(false);
                }
                let over = self.stream.is_idle()?;
                if over {
                    self.advance(given)
                } else {
                    // Nobody is asked about: this may be the question itself.
                    let _old = self.record_late()?;
                }
                Ok(over)
            }
        }
    }

    /// A point without an event whose recording failed before, in a thread that cannot record one: it is waited for.
    #[cold]
    fn wait_unrecorded(&self, point: u64) -> Result<bool> {
        let given = self.events.points.issued();
        if point <= given {
            self.wait_for_capture_end();
            self.synchronize_driver().map_err(|error| self.resolve_error(given, error))?;
            self.advance(given);
        }
        self.outcome_at(point)
    }

    /// Has `waker` woken once `point` is over, which the reactor finds out; `true` where it is over already.
    pub(crate) fn watch(&self, point: u64, waker: &Waker) -> bool {
        if self.events.points.reached() >= point {
            return true;
        }
        if !self.registration.wakers.lock().has(point, waker) {
            // Cloned, and dropped where it came a second time, under no lock: it is another crate's code.
            let waker = waker.clone();
            let mut wakers = self.registration.wakers.lock();
            let known = wakers.add(point, waker);
            self.registration.set_has_waiters(&wakers);
            drop(wakers);
            drop(known);
        }
        self.reactor.notify(&self.registration);
        false
    }

    /// Asks the driver; wakes whoever waits for what is over. Answers whether someone still waits. For the reactor.
    pub(crate) fn wake_reached(&self, woken: &mut Vec<Waker>) -> bool {
        let next = self.registration.wakers.lock().first();
        let Some(next) = next else { return false };
        let given = self.events.points.issued();
        match self.query(next) {
            Ok(true) => {}
            // An error of a moment says nothing of the work. Whoever may block finds out what it means; this thread serves all
            // streams, and asks again.
            Ok(false) => return true,
            // An event that was recorded into a capture never tells anything: the stream does, once that is over.
            Err(error) if is_capture_error(&error) && self.is_usable_here() => {
                if matches!(self.resolve_query_error(given, error), Ok(false)) {
                    return true;
                }
            }
            Err(error) if !error.is_sticky() => return true,
            Err(error) => {
                let _told_to_who_asks = self.resolve_error(next, error);
            }
        }
        let reached = self.reached();
        let mut wakers = self.registration.wakers.lock();
        wakers.take_reached(reached, woken);
        self.registration.set_has_waiters(&wakers);
        !wakers.is_empty()
    }

    /// Blocks until the callbacks up to `point`, which is reached, have run.
    pub(crate) fn wait_for_callbacks(&self, point: u64) {
        if !self.callbacks.has_pending(point) {
            return;
        }
        // It finds that out at once, and hands them over.
        self.reactor.poll_now();
        self.callbacks.wait(point);
    }
}

impl Drop for StreamTimeline {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used through `self` afterwards.
        let stream = Arc::new(unsafe { ManuallyDrop::take(&mut self.stream) });
        self.destroy_hooks.run(self.id, &stream);
        let wakers = std::mem::take(&mut *self.registration.wakers.lock());
        let _panic = catch_panic(|| drop(wakers));
        let Some(kernels) = self.kernels.get() else { return };
        // In another thread the handle would name another stream. To ask one that someone captures would break the capture.
        let can_be_asked = self.is_usable_here() && !is_captured(&stream);
        if !(can_be_asked && stream.is_idle().is_ok_and(|is_idle| is_idle)) {
            kernels.leak();
        }
    }
}

// SAFETY: a point is reached when an event behind its work is over, or the device is lost (see `points` and `loss`).
unsafe impl Timeline for StreamTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn is_simulated(&self) -> bool {
        Driver::get().is_ok_and(Driver::is_simulated)
    }

    fn reached(&self) -> u64 {
        self.events.points.reached()
    }

    fn poll(&self, point: u64) -> Result<bool> {
        // Known before the question, so that an idle stream has done it.
        let given = self.events.points.issued();
        match self.query(point) {
            Ok(true) => self.outcome_at(point),
            Ok(false) => Ok(false),
            Err(error) => self.resolve_query_error(given, error),
        }
    }

    fn wait(&self, point: u64) -> Result<()> {
        if self.reached() >= point {
            return self.outcome_at(point).map(|_| ());
        }
        // Recorded at once, an event is enqueued while the work still runs.
        let (event, upto) = match self.cover(point)? {
            PointState::Complete => return self.outcome_at(point).map(|_| ()),
            PointState::Unrecorded => return self.wait_unrecorded(point).map(|_| ()),
            PointState::Pending(event, upto) => (event, upto),
        };
        match event.synchronize() {
            Ok(()) => {
                drop(event);
                self.advance(upto);
                Ok(())
            }
            Err(error) => self.resolve_wait_error(upto, error),
        }
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if self.reactor.is_idle() && self.spin_poll(point) {
            return true;
        }
        self.watch(point, waker)
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        let mut pending = self.events.pending.lock();
        if let Some(duration) = pending.take_duration(point) {
            return Ok(Some(duration));
        }
        let untimed = pending.take_untimed(point);
        drop(pending);
        Ok(untimed.and_then(Ended::duration))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
