//! Ids of allocations.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Identifies an allocation within the process. Slices of one buffer share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BufferId(pub(crate) u64);

impl BufferId {
    /// Returns an id that no allocation of the process had. Each thread reserves a range of ids, so threads
    /// do not contend.
    pub(crate) fn next() -> Self {
        /// Ids that a thread reserves at a time.
        const RANGE: u64 = 1024;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            /// The next id of the thread's range, and the end of that range.
            static OWN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
        }
        let own = OWN.try_with(|own| {
            let (mut next, mut end) = own.get();
            if next == end {
                next = NEXT.fetch_add(RANGE, Ordering::Relaxed);
                end = next + RANGE;
            }
            own.set((next + 1, end));
            next
        });
        // During a thread's destruction, take a single id.
        Self(own.unwrap_or_else(|_| NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer #{}", self.0)
    }
}
