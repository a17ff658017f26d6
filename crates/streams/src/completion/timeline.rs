//! A stream's timeline: which operations are complete, found by querying their events.

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

use parking_lot::Mutex;
use transload_core::{
    DeviceId, Error, ErrorKind, QueueTally, Result, StreamPriority, Timeline, TimelineId, events::report,
    may_be_full, next_timeline_id,
};
use transload_cuda_sys::{AsStream, Context, Driver, DriverError, Event, EventTiming, RawStream, Stream};
use transload_memory::{CudaDevice, DeviceProfile, ListPages, lift_in};

use super::{
    callbacks::Callbacks,
    capture_state::is_captured,
    end_word::DownloadEnd,
    error_recovery::is_capture_error,
    pending_events::{Ended, PointState},
    reactor::Reactor,
    stream_events::StreamEvents,
    waiters::{Waiters, Watched},
    words::{KeptWord, Words},
};
use crate::{
    allocator::destroy_hooks::DestroyHooks,
    stream::{handle::StreamHandle, metrics::Counters},
    submit::kernels::Kernels,
};

/// Initial capacity for waiting tasks.
const TASKS: usize = 4;

/// A stream and the completion of its work. Field order matters: what a small copy reads lies together, next to the
/// reference count.
#[repr(C)]
pub(crate) struct StreamTimeline {
    pub(crate) events: StreamEvents<Event>,
    /// For a per-thread default stream, the thread in which the handle names this stream.
    thread: Option<ThreadId>,
    /// Taken at the drop: the end of a captured stream keeps it until the capture is over.
    stream: ManuallyDrop<StreamHandle>,
    pub(crate) device: DeviceId,
    /// Whether the stream waited for a user's event, which may have made it part of a capture.
    pub(crate) joins: AtomicBool,
    /// The first error of the stream's work. The context is unusable after it.
    pub(crate) broken: OnceLock<Error>,
    pub(crate) metrics: Counters,
    pub(crate) profile: Arc<DeviceProfile>,
    pub(crate) id: TimelineId,
    pub(crate) download_end: DownloadEnd,
    pub(crate) priority: StreamPriority,
    waiters: Waiters,
    /// This crate's kernels, after their first use.
    kernels: OnceLock<Arc<Kernels>>,
    /// The words that the host writes, once they are known; `None` if there is no memory for them.
    pub(crate) words: OnceLock<Option<Arc<Words>>>,
    /// Words for ends of host work that this stream waits for or may wait for.
    pub(crate) kept_words: Mutex<Vec<KeptWord>>,
    /// Whether the stream may wait for host work on the device.
    pub(crate) device_waits: AtomicBool,
    /// Counts for a profiler.
    pub(crate) tally: Arc<QueueTally>,
    /// Memory for lists that kernels read.
    pub(crate) lists: Arc<ListPages>,
    /// Whether the driver rejected the kernels; fills then use copies.
    fills_without_kernels: AtomicBool,
    /// User callbacks.
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) reactor: &'static Reactor,
    /// Run before the stream is destroyed.
    pub(crate) destroy_hooks: DestroyHooks,
}

impl StreamTimeline {
    /// Creates a timeline. `is_shared` says that other code can use the stream's handle. With `thread`, the handle
    /// names this stream in that thread only.
    pub(crate) fn new(
        device: &CudaDevice,
        priority: StreamPriority,
        stream: StreamHandle,
        is_shared: bool,
        thread: Option<ThreadId>,
    ) -> Result<Arc<Self>> {
        let reactor = Reactor::get()?;
        let spare = Event::new(stream.context(), EventTiming::Disabled).map(Arc::new);
        let spare = spare.map_err(|error| lift_in(stream.context(), error))?;
        Ok(Arc::new_cyclic(|this| Self {
            id: next_timeline_id(),
            download_end: DownloadEnd::new(device.end_words()),
            device: device.id(),
            lists: Arc::clone(device.lists()),
            priority,
            stream: ManuallyDrop::new(stream),
            thread,
            events: StreamEvents::new(is_shared, spare),
            waiters: Waiters::new(Weak::<Self>::clone(this), TASKS),
            broken: OnceLock::new(),
            kernels: OnceLock::new(),
            words: OnceLock::new(),
            kept_words: Mutex::default(),
            device_waits: AtomicBool::new(true),
            fills_without_kernels: AtomicBool::new(false),
            callbacks: Arc::default(),
            metrics: Counters::default(),
            profile: Arc::clone(device.profile()),
            tally: Arc::default(),
            reactor,
            destroy_hooks: DestroyHooks::default(),
            joins: AtomicBool::new(false),
        }))
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the handle for this crate's driver calls. Call [`share`](Self::share) before exposing it.
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

    /// Returns a point for which the event of every later point is recorded after all work enqueued so far.
    pub(crate) fn last_point(&self) -> u64 {
        self.events.points.issued()
    }

    /// Returns the error that made the stream unusable, if any.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns whether the handle names this stream in the calling thread.
    #[inline]
    pub(crate) fn is_usable_here(&self) -> bool {
        self.thread.is_none_or(|thread| thread == thread::current().id())
    }

    /// Returns whether this is a per-thread default stream.
    pub(crate) fn is_per_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Like [`check`](Self::check), but also fails in a thread in which the handle names another stream.
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

    /// Blocks until all enqueued work is complete.
    pub(crate) fn synchronize_driver(&self) -> Result<(), DriverError> {
        // From another thread the handle names another stream: wait for the whole context.
        if self.is_usable_here() { self.stream.synchronize() } else { self.context().synchronize() }
    }

    /// Returns the kernels of the stream's context. The first call may load them.
    pub(crate) fn kernels(&self) -> Result<&Kernels> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let found = Kernels::of(self.context())?;
        Ok(self.kernels.get_or_init(|| found))
    }

    /// Like [`kernels`](Self::kernels), but `None` if the driver rejects them, which is remembered.
    pub(crate) fn fill_kernels(&self) -> Result<Option<&Kernels>> {
        if self.fills_without_kernels.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.kernels() {
            Ok(kernels) => Ok(Some(kernels)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                report::kernel_unavailable(self.device, &error);
                self.fills_without_kernels.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Blocks until all work enqueued so far is complete, and records that.
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

    /// Polls for a moment: a small copy completes before a parked reactor wakes up. Only while the reactor is idle,
    /// so that the polls of many tasks do not add up.
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

    /// Returns the stream's error if it failed before the point was complete.
    fn outcome_at(&self, point: u64) -> Result<bool> {
        match self.broken.get() {
            Some(error) if point > self.events.pending.lock().completed() => Err(error.clone()),
            _ => Ok(true),
        }
    }

    /// Queries whether a point is complete, without handling driver errors. Records an event for an incomplete point
    /// without one, unless that might block until there is room: this may be the thread that polls for all streams.
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
                    // Complete, successfully or not.
                    let _told_to_who_asks = self.wait_unrecorded(point);
                    return Ok(true);
                }
                if self.is_captured() {
                    return Ok(false);
                }
                let over = self.stream.is_idle()?;
                if over {
                    self.advance(given)
                } else if may_be_full(self.outstanding())
                    && !transload_core::mutant!("streams/polls-enqueue-nothing")
                {
                    // Looks whether there is room the next time.
                    let recorded = self.events.pending.lock().middle();
                    recorded.map_or(Ok(false), |recorded| self.query(recorded))?;
                } else {
                    // Do not poll the old point: this may be that poll.
                    let _old = self.record_late()?;
                }
                Ok(over)
            }
        }
    }

    /// Waits for a point without an event, in a thread that cannot record one.
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

    /// Wakes `waker` when `point` is complete; returns `true` if it already is.
    pub(crate) fn watch(&self, point: u64, waker: &Waker) -> bool {
        if self.events.points.reached() >= point {
            return true;
        }
        self.waiters.add(self.reactor, point, waker);
        false
    }

    /// Blocks until the callbacks up to `point`, which is reached, have run.
    pub(crate) fn wait_for_callbacks(&self, point: u64) {
        if !self.callbacks.has_pending(point) {
            return;
        }
        // It polls at once and passes the callbacks on.
        self.reactor.poll_now();
        self.callbacks.wait(point);
    }
}

impl Watched for StreamTimeline {
    fn wake_reached(&self, woken: &mut Vec<Waker>) -> bool {
        let Some(next) = self.waiters.first() else { return false };
        let given = self.events.points.issued();
        match self.query(next) {
            Ok(true) => {}
            // A transient error says nothing about the work. A blocking wait resolves it; this thread serves all
            // streams and polls again.
            Ok(false) => return true,
            // An event recorded into a capture never completes; query the stream once the capture is over.
            Err(error) if is_capture_error(&error) && self.is_usable_here() => {
                if matches!(self.resolve_query_error(given, error), Ok(false)) {
                    return true;
                }
            }
            Err(error) => match self.context().judge(error) {
                error if error.is_sticky() => {
                    let _told_to_who_asks = self.resolve_error(next, error);
                }
                _ => return true,
            },
        }
        self.waiters.take_reached(self.reached(), woken)
    }
}

impl Drop for StreamTimeline {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used through `self` afterwards.
        let stream = Arc::new(unsafe { ManuallyDrop::take(&mut self.stream) });
        self.destroy_hooks.run(self.id, &stream);
        let Some(kernels) = self.kernels.get() else { return };
        // In another thread the handle names another stream, and a query would invalidate a capture.
        let can_be_asked = self.is_usable_here() && !is_captured(&stream);
        if !(can_be_asked && stream.is_idle().is_ok_and(|is_idle| is_idle)) {
            kernels.leak();
        }
    }
}

// SAFETY: a point is reached when an event after its work is complete, or the device is lost (see `points` and `error_recovery`).
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

    fn enqueued(&self) -> u64 {
        self.events.points.issued()
    }

    fn poll(&self, point: u64) -> Result<bool> {
        // Read before the query: if the stream is then idle, every point up to here is complete.
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
        if self.is_ended_by_word(point) {
            return self.outcome_at(point).map(|_| ());
        }
        // Record the event now, while the work still runs.
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
