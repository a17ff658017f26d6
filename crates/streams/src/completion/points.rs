//! A stream's points: how many were issued, covered by an event, and reached.
//!
//! Recording an event takes as much host time as enqueueing a small copy, so a batch of small copies and fills shares
//! one. A point is issued after the driver has accepted its work. The event of a batch is recorded when a thread
//! polls it, when the batch is full, or before any other operation is enqueued. It covers every point issued before.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of small operations in a batch. With 16, the event costs 15 ns per operation, and a fence waits for
/// at most 15 later operations.
pub(crate) const BATCH: u64 = 16;

/// The counters of one stream. All methods may be called from any thread.
pub(crate) struct Points {
    /// Last point issued. The driver accepted its work before.
    issued: AtomicU64,
    /// Last point that is covered by an event or reached.
    covered: AtomicU64,
    /// The last point known to be reached.
    reached: AtomicU64,
    /// Last point of a flushed batch.
    last_batched: AtomicU64,
    /// Whether other code can enqueue work through the handle. Every point then needs its event at once: a later one
    /// would also cover that work, which may wait for the host.
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

    /// Issues the next point, for work that the driver has accepted. Other threads may issue points concurrently.
    pub(crate) fn issue(&self) -> u64 {
        self.issued.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Issues the next point, for a small operation; returns it and whether the batch must be flushed now.
    #[inline]
    pub(crate) fn issue_small(&self) -> (u64, bool) {
        let point = self.issue();
        // Read after issuing: a thread that shares the stream either sees the point and flushes, or its flag is seen
        // here.
        let shared = self.shared.load(Ordering::Acquire);
        (point, shared || point.saturating_sub(self.covered.load(Ordering::Relaxed)) >= BATCH)
    }

    /// Whether every point needs an event at once.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Requires an event for every later point. The caller flushes the open batch.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Release);
        // A no-op read-modify-write orders this with `issue_small`: either the point came first and the caller
        // flushes its batch, or the issuing thread sees the flag.
        if !transload_core::mutant!("streams/share-meets-points") {
            self.issued.fetch_add(0, Ordering::AcqRel);
        }
    }

    /// The last point issued.
    #[inline]
    pub(crate) fn issued(&self) -> u64 {
        self.issued.load(Ordering::Acquire)
    }

    /// Returns whether points were issued that no event covers.
    #[inline]
    pub(crate) fn batch_is_open(&self) -> bool {
        self.covered.load(Ordering::Acquire) < self.issued()
    }

    /// Returns whether the open batch is all that is outstanding.
    #[inline]
    pub(crate) fn only_a_batch_is_outstanding(&self) -> bool {
        self.batch_is_open() && self.covered.load(Ordering::Relaxed) <= self.reached()
    }

    /// Returns whether the last operation was a small one.
    #[inline]
    pub(crate) fn last_was_small(&self) -> bool {
        self.batch_is_open() || self.last_batched.load(Ordering::Relaxed) == self.issued()
    }

    /// Records that a batch ends with this point.
    pub(crate) fn end_batch(&self, upto: u64) {
        self.last_batched.store(upto, Ordering::Relaxed);
    }

    /// Returns whether an event covers the point, or it is reached.
    pub(crate) fn is_covered(&self, point: u64) -> bool {
        self.covered.load(Ordering::Acquire) >= point
    }

    /// Records that an event covers all points up to this one.
    pub(crate) fn cover(&self, upto: u64) {
        self.covered.fetch_max(upto, Ordering::AcqRel);
    }

    /// Records that all points up to this one are reached.
    pub(crate) fn reach(&self, upto: u64) {
        self.covered.fetch_max(upto, Ordering::AcqRel);
        self.reached.fetch_max(upto, Ordering::Release);
    }

    /// Marks every point as reached, after the stream was lost.
    pub(crate) fn reach_all(&self) {
        self.reached.store(u64::MAX, Ordering::Release);
    }

    /// The last point known to be reached.
    #[inline]
    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Returns the number of points issued and not known to be reached.
    pub(crate) fn outstanding(&self) -> u64 {
        self.issued.load(Ordering::Relaxed).saturating_sub(self.reached.load(Ordering::Relaxed))
    }
}
