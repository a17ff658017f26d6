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
    error_recovery::is_of_a_capture,
    pending_events::{Covered, Ended},
    reactor::{Reactor, StreamWatch},
    registration::Watch,
    stream_events::Ends,
    wakers::Wakers,
};
use crate::{allocator::destroy_hooks::Endings, stream::metrics::Counters, submit::kernels::Kernels};

/// Tasks that may wait for one stream before the list of them grows.
const TASKS: usize = 4;

/// A stream and the completion of what was enqueued on it. In this order what a small copy looks at lies together, behind the
/// count of handles.
#[repr(C)]
pub(crate) struct StreamTimeline {
    pub(crate) ends: Ends<Event>,
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
    watch: Arc<StreamWatch>,
    /// Our own kernels, once one was asked for.
    kernels: OnceLock<Arc<Kernels>>,
    /// The driver did not take them when a fill asked, which can do without.
    fills_without: AtomicBool,
    /// What runs at completion, once something was registered.
    pub(crate) callbacks: Arc<Callbacks>,
    reactor: &'static Reactor,
    /// Who is told before the stream is destroyed.
    pub(crate) endings: Endings,
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
            ends: Ends::new(is_shared, spare),
            watch: Arc::new(Watch::new(Weak::clone(this), Wakers::with_room(TASKS))),
            broken: OnceLock::new(),
            kernels: OnceLock::new(),
            fills_without: AtomicBool::new(false),
            callbacks: Arc::default(),
            metrics: Counters::default(),
            reactor,
            endings: Endings::default(),
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
        self.ends.points.outstanding()
    }

    /// A point such that the event of every later one is recorded after what is enqueued by now: points are given before
    /// their events are recorded.
    pub(crate) fn last_point(&self) -> u64 {
        self.ends.points.given()
    }

    /// The error that made the stream unusable, if any did.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether the handle means this stream in the calling thread.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.thread.is_none_or(|thread| thread == thread::current().id())
    }

    /// Whether only one thread can name the stream.
    pub(crate) fn is_of_a_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// As [`check`](Self::check), and whether the calling thread may use the stream at all.
    #[inline]
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.is_here() { self.check() } else { Err(self.elsewhere()) }
    }

    #[cold]
    fn elsewhere(&self) -> Error {
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
        if self.is_here() { self.stream.synchronize() } else { self.context().synchronize() }
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
    pub(crate) fn kernels_for_fills(&self) -> Result<Option<&Kernels>> {
        if self.fills_without.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.kernels() {
            Ok(kernels) => Ok(Some(kernels)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.fills_without.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Blocks until everything enqueued so far is over, and takes note of it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.check_runs()?;
        let point = self.ends.points.given();
        match self.stream.synchronize() {
            Ok(()) => {
                self.advance(point);
                Ok(())
            }
            Err(error) => Err(self.settle(point, error)),
        }
    }

    pub(crate) fn advance(&self, point: u64) {
        self.ends.advance(point);
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

    /// Whether the point was over before the stream broke.
    fn ended_well(&self, point: u64) -> Result<bool> {
        match self.broken.get() {
            Some(error) if point > self.ends.line.lock().over() => Err(error.clone()),
            _ => Ok(true),
        }
    }

    /// Asks the driver about a point, and makes nothing of its error. A point that no event covers yet, and that is not over,
    /// has one from here on.
    fn ask(&self, point: u64) -> Result<bool, DriverError> {
        if self.ends.points.reached() >= point {
            return Ok(true);
        }
        let covered = self.ends.line.lock().covering(point);
        match covered {
            Covered::Over => Ok(true),
            Covered::By(event, upto) => {
                let over = event.is_done()?;
                drop(event);
                if over {
                    self.advance(upto);
                }
                Ok(over)
            }
            Covered::NotYet => {
                let given = self.ends.points.given();
                if point > given || !self.is_here() {
                    // Over, well or not.
                    let _told_to_who_asks = self.settle_open(point);
                    return Ok(true);
                }
                if self.is_captured_by_someone() {
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
    fn settle_open(&self, point: u64) -> Result<bool> {
        let given = self.ends.points.given();
        if point <= given {
            self.wait_out_a_capture();
            self.synchronize_driver().map_err(|error| self.settle(given, error))?;
            self.advance(given);
        }
        self.ended_well(point)
    }

    /// Has `waker` woken once `point` is over, which the reactor finds out; `true` where it is over already.
    pub(crate) fn watch(&self, point: u64, waker: &Waker) -> bool {
        if self.ends.points.reached() >= point {
            return true;
        }
        if !self.watch.wakers.lock().has(point, waker) {
            // Cloned, and dropped where it came a second time, under no lock: it is another crate's code.
            let waker = waker.clone();
            let mut wakers = self.watch.wakers.lock();
            let known = wakers.add(point, waker);
            self.watch.note(&wakers);
            drop(wakers);
            drop(known);
        }
        self.reactor.notice(&self.watch);
        false
    }

    /// Asks the driver; wakes whoever waits for what is over. Answers whether someone still waits. For the reactor.
    pub(crate) fn wake_what_is_over(&self, woken: &mut Vec<Waker>) -> bool {
        let next = self.watch.wakers.lock().first();
        let Some(next) = next else { return false };
        let given = self.ends.points.given();
        match self.ask(next) {
            Ok(true) => {}
            // An error of a moment says nothing of the work. Whoever may block finds out what it means; this thread serves all
            // streams, and asks again.
            Ok(false) => return true,
            // An event that was recorded into a capture never tells anything: the stream does, once that is over.
            Err(error) if is_of_a_capture(&error) && self.is_here() => {
                if matches!(self.settle_question(given, error), Ok(false)) {
                    return true;
                }
            }
            Err(error) if !error.is_sticky() => return true,
            Err(error) => {
                let _told_to_who_asks = self.settle(next, error);
            }
        }
        let reached = self.reached();
        let mut wakers = self.watch.wakers.lock();
        wakers.take_reached(reached, woken);
        self.watch.note(&wakers);
        !wakers.is_empty()
    }

    /// Blocks until the callbacks up to `point`, which is reached, have run.
    pub(crate) fn wait_for_callbacks(&self, point: u64) {
        if !self.callbacks.has(point) {
            return;
        }
        // It finds that out at once, and hands them over.
        self.reactor.look_now();
        self.callbacks.wait(point);
    }
}

impl Drop for StreamTimeline {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used through `self` afterwards.
        let stream = Arc::new(unsafe { ManuallyDrop::take(&mut self.stream) });
        self.endings.tell(self.id, &stream);
        let wakers = std::mem::take(&mut *self.watch.wakers.lock());
        let _panic = catch_panic(|| drop(wakers));
        let Some(kernels) = self.kernels.get() else { return };
        // In another thread the handle would name another stream. To ask one that someone captures would break the capture.
        let can_be_asked = self.is_here() && !is_captured(&stream);
        if !(can_be_asked && stream.is_idle().is_ok_and(|is_idle| is_idle)) {
            kernels.leave_running();
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
        self.ends.points.reached()
    }

    fn poll(&self, point: u64) -> Result<bool> {
        // Known before the question, so that an idle stream has done it.
        let given = self.ends.points.given();
        match self.ask(point) {
            Ok(true) => self.ended_well(point),
            Ok(false) => Ok(false),
            Err(error) => self.settle_question(given, error),
        }
    }

    fn wait(&self, point: u64) -> Result<()> {
        if self.reached() >= point {
            return self.ended_well(point).map(|_| ());
        }
        // Recorded at once, an event is enqueued while the work still runs.
        let (event, upto) = match self.cover(point)? {
            Covered::Over => return self.ended_well(point).map(|_| ()),
            Covered::NotYet => return self.settle_open(point).map(|_| ()),
            Covered::By(event, upto) => (event, upto),
        };
        match event.synchronize() {
            Ok(()) => {
                drop(event);
                self.advance(upto);
                Ok(())
            }
            Err(error) => self.settle_wait(upto, error),
        }
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if self.reactor.is_idle() && self.ask_for_a_moment(point) {
            return true;
        }
        self.watch(point, waker)
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        let mut line = self.ends.line.lock();
        if let Some(duration) = line.take_duration(point) {
            return Ok(Some(duration));
        }
        let undecided = line.take_undecided(point);
        drop(line);
        Ok(undecided.and_then(Ended::duration))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
