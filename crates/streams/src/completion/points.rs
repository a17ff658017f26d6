//! The points of a stream: how many were issued, how far events cover them, and whether they may go without for a while.
//!
//! Recording an event costs as much host time as enqueueing a last_batched copy. So a run of last_batched copies and fills shares one: a
//! point is issued when the driver has taken its work, and the event that covers it is recorded when somebody asks, when the
//! run is full, or before anything else is enqueued. What an event is recorded behind always includes the work of every
//! point issued before.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// How many last_batched operations share an event at most. At 16 the event is 15 ns of each; a fence waits for 15 last_batched
/// operations of its own stream that it need not wait for, at most.
pub(crate) const BATCH: u64 = 16;

/// The counters. All methods may be called from any thread.
pub(crate) struct Points {
    /// The last point issued. Its work was taken by the driver before.
    issued: AtomicU64,
    /// The last point that an event covers, or that is known to be reached.
    covered: AtomicU64,
    /// The last point known to be reached.
    reached: AtomicU64,
    /// The last point of a run that has an event.
    last_batched: AtomicU64,
    /// Someone outside can enqueue work of any kind on the stream: no point may go without an event then, since a late one
    /// would also cover what they enqueued meanwhile, and that may wait for the host.
    shared: AtomicBool,
}

impl Points {
    pub(crate) fn new(shared: bool) -> Self {
        Self {
            issued: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            last_batched: AtomicU64::new(0),
            shared: AtomicBool::new(shared),
        }
    }

    /// The next point, for work that the driver has taken. Others may issue points meanwhile.
    pub(crate) fn issue(&self) -> u64 {
        self.issued.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The next point, for a last_batched operation that the driver has taken; and whether the run must be closed now.
    #[inline]
    pub(crate) fn issue_small(&self) -> (u64, bool) {
        let point = self.issue();
        // Behind the point: whoever shares the stream either sees it and closes the run, or is seen here.
        let shared = self.shared.load(Ordering::Acquire);
        (point, shared || point.saturating_sub(self.covered.load(Ordering::Relaxed)) >= BATCH)
    }

    /// Whether every point needs an event at once.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// From here on every point needs an event at once. The caller closes the run.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Release);
        // A change of `issued` that changes nothing: of two changes one comes after the other. Either a point was issued
        // before, and its run is closed behind this; or whoever gives one later reads from here, and sees the flag.
        if !transload_core::mutant!("streams/share-meets-points") {
            self.issued.fetch_add(0, Ordering::AcqRel);
        }
    }

    /// The last point issued.
    #[inline]
    pub(crate) fn issued(&self) -> u64 {
        self.issued.load(Ordering::Acquire)
    }

    /// Whether points were issued that no event covers.
    #[inline]
    pub(crate) fn batch_is_open(&self) -> bool {
        self.covered.load(Ordering::Acquire) < self.issued()
    }

    /// Whether a run is open with nothing outstanding before it.
    #[inline]
    pub(crate) fn only_a_batch_is_outstanding(&self) -> bool {
        self.batch_is_open() && self.covered.load(Ordering::Relaxed) <= self.reached()
    }

    /// Whether the last operation was a last_batched one.
    #[inline]
    pub(crate) fn last_was_small(&self) -> bool {
        self.batch_is_open() || self.last_batched.load(Ordering::Relaxed) == self.issued()
    }

    /// A run ends with this point.
    pub(crate) fn end_batch(&self, upto: u64) {
        self.last_batched.store(upto, Ordering::Relaxed);
    }

    /// Whether an event covers the point, or it is reached.
    pub(crate) fn is_covered(&self, point: u64) -> bool {
        self.covered.load(Ordering::Acquire) >= point
    }

    /// An event was recorded behind the work of all points up to this one.
    pub(crate) fn cover(&self, upto: u64) {
        self.covered.fetch_max(upto, Ordering::AcqRel);
    }

    /// All points up to this one are reached.
    pub(crate) fn reach(&self, upto: u64) {
        self.covered.fetch_max(upto, Ordering::AcqRel);
        self.reached.fetch_max(upto, Ordering::Release);
    }

    /// Nothing of the stream runs any more: every point counts as reached.
    pub(crate) fn reach_all(&self) {
        self.reached.store(u64::MAX, Ordering::Release);
    }

    /// The last point known to be reached.
    #[inline]
    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// How many points were issued and are not known to be reached.
    pub(crate) fn outstanding(&self) -> u64 {
        self.issued.load(Ordering::Relaxed).saturating_sub(self.reached.load(Ordering::Relaxed))
    }
}
