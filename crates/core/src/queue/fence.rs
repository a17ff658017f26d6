//! Timelines, which count a queue's completed operations, and fences, which are points on them.

use std::{
    any::Any,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{DeviceId, Error, Result, queue::source::Sources};

/// Identifies a timeline within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TimelineId(u64);

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Returns a new id, for a backend's new timeline.
#[must_use]
pub fn next_timeline_id() -> TimelineId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    TimelineId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Counts the completed operations of a queue: point *n* is reached when its first *n* operations are
/// complete.
///
/// All methods may be called from any thread.
///
/// # Safety
/// Memory is reused and freed on the word of an implementation:
/// * A point counts as reached by [`reached`](Self::reached), if [`poll`](Self::poll) returns `true` or an
///   error, when [`wait`](Self::wait) returns, and if [`wake_at`](Self::wake_at) returns `true`. This must
///   happen only when the work of that point and of all earlier ones no longer touches memory. A reached
///   point stays reached. That is promised of points up to [`enqueued`](Self::enqueued), which is no earlier than any of which
///   there is a fence: for a later one, `wait` may return an error at once.
/// * Its [`id`](Self::id) comes from [`next_timeline_id`], and no other timeline has it.
pub unsafe trait Timeline: Send + Sync + 'static {
    /// Returns its id.
    fn id(&self) -> TimelineId;

    /// Returns the device whose work it counts.
    fn device(&self) -> DeviceId;

    /// Returns the last point *known* to be reached, by an atomic load, without querying the driver. Failed
    /// operations count as complete, and a lost device has reached every point, so that memory can be
    /// reclaimed.
    fn reached(&self) -> u64;

    /// Returns the last point that was enqueued, or a later one if that is not known. Never decreases, and counts a point before a
    /// fence of it is made: one of a later point is a fence of this one.
    fn enqueued(&self) -> u64 {
        u64::MAX
    }

    /// Queries whether `point` is reached. Blocks only to find the cause of a failed query.
    ///
    /// # Errors
    /// The error of the operation at `point`, or of the device. The point counts as
    /// [`reached`](Self::reached) then: an implementation must not return an error while the operation may
    /// still touch memory.
    fn poll(&self, point: u64) -> Result<bool>;

    /// Blocks the calling thread until `point` is reached.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn wait(&self, point: u64) -> Result<()>;

    /// Arranges that `waker` is woken when `point` is reached or has failed. If it already is, returns `true`
    /// and stores nothing. Does not block; it may poll for some microseconds first, if that is likely to be
    /// cheaper than sleeping (a CUDA stream does so for at most 10 µs, and only if no other task waits). A
    /// waker registered before for the same point need not be stored twice.
    fn wake_at(&self, point: u64, waker: &Waker) -> bool;

    /// Returns why [`wait`](Self::wait) would not return until the user acts, by ending a stream capture for
    /// example: the calling thread may be the one that has to. A drain skips such work and returns this
    /// error. Does not block.
    fn held_by_user(&self, point: u64) -> Option<Error> {
        let _ends_by_itself = point;
        None
    }

    /// Returns how long the operation at `point` occupied the device, by the lane's own clock (the host's,
    /// for the host's lanes). Only for operations enqueued with
    /// [`Timing::Measured`](crate::Timing::Measured), and only once. By default nothing is measured.
    ///
    /// # Errors
    /// The driver's.
    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        let _not_measured = point;
        Ok(None)
    }

    /// Returns whether the device is simulated by a software driver; `false` by default.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Returns whether its work can fail while the device stays usable, as work of host threads can. Always
    /// returns the same. The fences of work that read bytes which failed work should have written report such
    /// a failure, and the bytes are marked as damaged.
    fn can_fail(&self) -> bool {
        false
    }

    /// Returns whether the failed work at `point` may have changed bytes. Only then are they marked as
    /// damaged.
    fn may_have_written(&self, point: u64) -> bool {
        let _ = point;
        true
    }

    /// Returns whether the incomplete work up to `point` ends by host threads alone: no call of a driver comes
    /// before that end, nothing that the user must do, and no work of a device. A device may then wait for a
    /// [signal](Self::signal_at), although calls of its driver may stand still meanwhile. `true` stays so until
    /// the point is reached.
    fn ends_by_host_alone(&self, point: u64) -> bool {
        let _not_known = point;
        false
    }

    /// Calls `signal` as soon as `point` is reached, before any waker, or at once if it is. Only after
    /// [`ends_by_host_alone`](Self::ends_by_host_alone) returned `true`. `signal` must not block, call a driver, or panic.
    fn signal_at(&self, point: u64, signal: PointSignal) {
        // Such a timeline never says that its work ends by the host alone.
        let _over = self.wait(point);
        signal();
    }

    /// Returns `self`, for the backend's own queues, which can wait for it without the host.
    fn as_any(&self) -> &dyn Any;
}

/// Tells a device that a point is reached; see [`Timeline::signal_at`].
pub type PointSignal = Box<dyn Fn() + Send + Sync>;

/// A point on a [`Timeline`]. Cheap to clone; keeps the timeline alive, and with it its stream or workers'
/// queue.
#[derive(Clone)]
pub struct Fence {
    /// The fallible work whose bytes this work read. Dropped first, so that a check of it before serves the drop, too.
    sources: Option<Arc<Sources>>,
    timeline: Arc<dyn Timeline>,
    point: u64,
}

impl Fence {
    /// Creates a fence of the timeline's `point`-th operation, or of the last one that is enqueued, if that is earlier:
    /// nothing can be in flight at a later point, which would hide what is at earlier ones.
    #[must_use]
    #[inline]
    pub fn new(timeline: Arc<dyn Timeline>, point: u64) -> Self {
        let point = if crate::mutant!("core/later-point") { point } else { point.min(timeline.enqueued()) };
        Self { timeline, point, sources: None }
    }

    /// Like [`new`](Self::new), of a point that was one of a fence.
    pub(crate) fn of_known(timeline: Arc<dyn Timeline>, point: u64) -> Self {
        Self { timeline, point, sources: None }
    }

    /// Sets the fallible work whose bytes this work read.
    pub(crate) fn with_sources(self, sources: Option<Arc<Sources>>) -> Self {
        Self { sources, ..self }
    }

    /// Returns a fence of the same point that reports only the work's own failure.
    pub(crate) fn without_sources(&self) -> Self {
        Self::of_known(Arc::clone(&self.timeline), self.point)
    }

    #[inline]
    pub(crate) fn sources(&self) -> Option<&Sources> {
        self.sources.as_deref()
    }

    /// Returns whether the work can fail while its device stays usable, on its own or because of its sources.
    pub(crate) fn can_fail(&self) -> bool {
        self.sources.is_some() || self.timeline.can_fail()
    }

    /// Returns whether both have the same sources, or none.
    #[inline]
    pub(crate) fn has_sources_of(&self, other: &Self) -> bool {
        match (&self.sources, &other.sources) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns how the work ended, or `None` while it is not complete. Queries the driver.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        match self.poll() {
            Ok(false) => None,
            Ok(true) => Some(self.outcome_of_sources()),
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns the first known failure of a source. Does not wait.
    #[inline]
    pub(crate) fn outcome_of_sources(&self) -> Result<()> {
        self.sources.as_ref().map_or(Ok(()), |sources| sources.outcome())
    }

    /// Returns the timeline.
    #[must_use]
    #[inline]
    pub fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    /// Returns the point.
    #[must_use]
    #[inline]
    pub fn point(&self) -> u64 {
        self.point
    }

    /// Returns whether the work is known to be complete, without querying the driver.
    #[must_use]
    #[inline]
    pub fn is_known_complete(&self) -> bool {
        self.timeline.reached() >= self.point
    }

    /// Returns whether the work is complete, querying the driver. Failed work is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_known_complete() || self.poll().unwrap_or(true)
    }

    /// Asks its timeline whether the work is complete: see [`Timeline::poll`].
    ///
    /// # Errors
    /// The work's own, or the device's.
    pub fn poll(&self) -> Result<bool> {
        self.timeline.poll(self.point)
    }

    /// Has its timeline wake `waker` once the work is complete, or returns `true` if it is: see [`Timeline::wake_at`].
    #[must_use]
    pub fn wake_at(&self, waker: &Waker) -> bool {
        self.timeline.wake_at(self.point, waker)
    }

    /// Returns why only the user can end the work: see [`Timeline::held_by_user`].
    #[must_use]
    pub fn held_by_user(&self) -> Option<Error> {
        self.timeline.held_by_user(self.point)
    }

    /// Returns whether it is a point of this timeline object.
    #[inline]
    pub(crate) fn is_of_timeline(&self, timeline: &Arc<dyn Timeline>) -> bool {
        // Compares the pointers only: comparing objects would look up their addresses in the vtable.
        Arc::ptr_eq(&self.timeline, timeline)
    }

    /// Returns the address of its timeline object, to sort by.
    pub(crate) fn timeline_address(&self) -> usize {
        Arc::as_ptr(&self.timeline).cast::<()>().addr()
    }

    /// Moves it to another point of its timeline.
    #[inline]
    pub(crate) fn move_to(&mut self, point: u64) {
        self.point = point;
    }

    /// Returns whether both are the same point of the same timeline.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.point == other.point && self.timeline.id() == other.timeline.id()
    }

    /// Blocks the calling thread until the work is complete.
    ///
    /// # Errors
    /// The work's own error, or the device's. [`SourceFailed`](crate::ErrorKind::SourceFailed) if bytes that
    /// the work read were invalid, because earlier work had failed to write them.
    pub fn wait(&self) -> Result<()> {
        self.timeline.wait(self.point)?;
        self.outcome_of_sources()
    }

    /// Returns a future that completes with the work, for any executor; `fence.await` does the same. Blocks
    /// no thread. May be dropped at any time; its waker may then stay registered until the point is reached.
    ///
    /// # Errors
    /// Of the future: like [`wait`](Self::wait).
    pub fn done(&self) -> Done {
        Done { fence: self.clone() }
    }

    /// Polls for completion, as a future does.
    pub(crate) fn poll_done(&self, context: &Context<'_>) -> Poll<Result<()>> {
        // Do not query the driver here: `wake_at` polls for all tasks; a query per task would cost more than
        // its work.
        if !self.is_known_complete() && !self.wake_at(context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(self.wait())
    }
}

/// A future that completes with the work; see [`Fence::done`].
#[derive(Clone, Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Done {
    fence: Fence,
}

impl Future for Done {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.fence.poll_done(context)
    }
}

impl IntoFuture for Fence {
    type Output = Result<()>;
    type IntoFuture = Done;

    fn into_future(self) -> Done {
        Done { fence: self }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({} #{} @{})", self.timeline.device(), self.timeline.id().0, self.point)
    }
}
