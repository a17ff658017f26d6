//! When work is done: a queue's timeline counts its operations, a fence is one point on it.

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
pub struct TimelineId(u64);

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A fresh identity for a backend's new timeline.
#[must_use]
pub fn next_timeline_id() -> TimelineId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    TimelineId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The completion of a queue's operations, in order: point *n* is reached when its first *n* operations are done.
///
/// All methods may be called from any thread.
///
/// # Safety
/// Buffers are used again, and given back, by its word:
/// * A point counts as reached, by [`reached`](Self::reached), by an answer of `true` or an error of [`poll`](Self::poll), by
///   the return of [`wait`](Self::wait), or by an answer of `true` of [`wake_at`](Self::wake_at), only when the work of that
///   point and of all before it touches memory no more. Once reached it stays so.
/// * Its [`id`](Self::id) comes from [`next_timeline_id`] and is no other timeline's.
pub unsafe trait Timeline: Send + Sync + 'static {
    /// Its identity.
    fn id(&self) -> TimelineId;

    /// The device whose work it counts.
    fn device(&self) -> DeviceId;

    /// The last point *known* to be reached: an atomic load, no question to the driver. An operation that failed is
    /// over too, and a lost device reaches every point, so that memory can be reclaimed.
    fn reached(&self) -> u64;

    /// Asks whether `point` is reached; blocks only to find out what a failed question means.
    ///
    /// # Errors
    /// The error of the operation at `point`, or of the device. The point counts as [`reached`](Self::reached) then: an
    /// implementation must not answer an error while the operation may still touch memory.
    fn poll(&self, point: u64) -> Result<bool>;

    /// Blocks the calling thread until `point` is reached.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn wait(&self, point: u64) -> Result<()>;

    /// Arranges that `waker` is woken once `point` is reached or failed. Where that is already so it answers `true`
    /// and keeps nothing. Does not block; it may look for some microseconds first, where that is likely to be cheaper
    /// than to sleep and be woken (a CUDA stream does so for at most 10 µs, while no other task waits). A waker that was
    /// given before for the same point need not be kept twice.
    fn wake_at(&self, point: u64, waker: &Waker) -> bool;

    /// Returns why [`wait`](Self::wait) would not end before the user does something, such as ending a capture: the calling
    /// thread may be the one that has to. A drain skips such work and returns this error. Does not block.
    fn held_by_user(&self, point: u64) -> Option<Error> {
        let _ends_by_itself = point;
        None
    }

    /// How long the operation at `point` occupied the device, by the lane's own clock (the host's, for the host's
    /// lanes): only for operations enqueued with [`Timing::Measured`](crate::Timing::Measured), and only once. By default
    /// nothing is measured.
    ///
    /// # Errors
    /// The driver's.
    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        let _not_measured = point;
        Ok(None)
    }

    /// Returns whether a software driver plays the device; by default not.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Returns whether work on it can fail by itself, with its device intact, as work of the host's threads can. The answer
    /// never changes. Such a failure is told by the fences of work that read what the failed work should have written, and
    /// the bytes are marked.
    fn can_fail(&self) -> bool {
        false
    }

    /// Returns whether the work at `point`, which failed by itself, may have changed bytes before it did. Only then are they
    /// marked.
    fn may_have_written(&self, point: u64) -> bool {
        let _ = point;
        true
    }

    /// For the backend's own queues, which can wait for it without the host.
    fn as_any(&self) -> &dyn Any;
}

/// A point on a [`Timeline`]. Cheap to clone; keeps the timeline (and so its stream or workers' queue) alive.
#[derive(Clone)]
pub struct Fence {
    timeline: Arc<dyn Timeline>,
    point: u64,
    /// What the work read that can fail by itself.
    sources: Option<Arc<Sources>>,
}

impl Fence {
    /// The fence of the timeline's `point`-th operation.
    #[must_use]
    #[inline]
    pub fn new(timeline: Arc<dyn Timeline>, point: u64) -> Self {
        Self { timeline, point, sources: None }
    }

    /// Adds what the work read.
    pub(crate) fn with_sources(self, sources: Option<Arc<Sources>>) -> Self {
        Self { sources, ..self }
    }

    /// Returns a fence of the same point that tells no failure but the work's own.
    pub(crate) fn without_sources(&self) -> Self {
        Self::new(Arc::clone(&self.timeline), self.point)
    }

    #[inline]
    pub(crate) fn sources(&self) -> Option<&Sources> {
        self.sources.as_deref()
    }

    /// Returns whether the work can fail while its device is intact, by itself or by what it read.
    pub(crate) fn can_fail(&self) -> bool {
        self.sources.is_some() || self.timeline.can_fail()
    }

    /// Returns whether both have the very same sources, or none.
    #[inline]
    pub(crate) fn has_sources_of(&self, other: &Self) -> bool {
        match (&self.sources, &other.sources) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns how the work ended, or `None` while it is not complete. Asks the driver.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        match self.timeline.poll(self.point) {
            Ok(false) => None,
            Ok(true) => Some(self.outcome_of_sources()),
            Err(error) => Some(Err(error)),
        }
    }

    #[inline]
    fn outcome_of_sources(&self) -> Result<()> {
        self.sources.as_ref().map_or(Ok(()), |sources| sources.outcome())
    }

    /// The timeline.
    #[must_use]
    #[inline]
    pub fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    /// The point.
    #[must_use]
    #[inline]
    pub fn point(&self) -> u64 {
        self.point
    }

    /// Whether it is known, without asking the driver, that the work is over.
    #[must_use]
    #[inline]
    pub fn is_known_complete(&self) -> bool {
        self.timeline.reached() >= self.point
    }

    /// Whether the work is over, asking the driver; an error counts as over.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_known_complete() || self.timeline.poll(self.point).unwrap_or(true)
    }

    /// Whether it is a point of this very timeline: by its object, so cheap and without false positives.
    #[inline]
    pub(crate) fn is_of_timeline(&self, timeline: &Arc<dyn Timeline>) -> bool {
        // Of the pointers alone: the object's address would be looked up in its table of functions first.
        Arc::ptr_eq(&self.timeline, timeline)
    }

    /// Returns the address of its timeline's object, to sort by.
    pub(crate) fn timeline_address(&self) -> usize {
        Arc::as_ptr(&self.timeline).cast::<()>().addr()
    }

    /// Makes it another point of its timeline.
    #[inline]
    pub(crate) fn move_to(&mut self, point: u64) {
        self.point = point;
    }

    /// Whether both are the same point of the same timeline.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.point == other.point && self.timeline.id() == other.timeline.id()
    }

    /// Blocks the calling thread until the work is done.
    ///
    /// # Errors
    /// The work's own error, or the device's. [`SourceFailed`](crate::ErrorKind::SourceFailed) where bytes that the work
    /// read had not been written as they should, because earlier work had failed.
    pub fn wait(&self) -> Result<()> {
        self.timeline.wait(self.point)?;
        self.outcome_of_sources()
    }

    /// A future of the work's end, for any executor; `fence.await` does the same. Blocks no thread. It may be dropped at
    /// any time, and then holds nothing but its waker, until the point is reached.
    ///
    /// # Errors
    /// By the future: as for [`wait`](Self::wait).
    pub fn done(&self) -> Done {
        Done { fence: self.clone() }
    }

    /// Whether the work is done, as a future's `poll` answers it.
    pub(crate) fn poll_done(&self, context: &Context<'_>) -> Poll<Result<()>> {
        // Whoever serves the wakers asks the driver for all of them; a question for each task would cost more than its work.
        if !self.is_known_complete() && !self.timeline.wake_at(self.point, context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(self.wait())
    }
}

/// The end of work as a future; see [`Fence::done`].
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
