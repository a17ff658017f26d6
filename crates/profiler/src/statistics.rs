//! Times of one kind of work: how much of it, and how it is distributed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use hdrhistogram::Histogram;

use crate::stream_report::{Percentiles, TimesReport};

/// Significant digits.
const DIGITS: u8 = 2;
/// Bytes that the distributions of a profiler take together at most.
const MOST: usize = 16 << 20;

/// How much the distributions of a profiler take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room(Arc<AtomicUsize>);

/// A histogram of nanoseconds. It has 1 KiB for each doubling of the longest time from 128 ns on: 24 KiB for a second, 41 for a day.
#[derive(Debug)]
struct Distribution {
    histogram: Histogram<u64>,
    bytes: usize,
    room: Room,
}

impl Distribution {
    /// Creates one that reaches to a time; `None` if there is no room.
    fn new(longest: u64, room: &Room) -> Option<Box<Self>> {
        let high = longest.max(256).checked_next_power_of_two().unwrap_or(u64::MAX);
        let histogram = Histogram::new_with_bounds(1, high, DIGITS).ok()?;
        let bytes = histogram.distinct_values() * size_of::<u64>() + size_of::<Self>();
        // Dropped without room, it is taken off again.
        let taken = room.0.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let distribution = Self { histogram, bytes, room: room.clone() };
        (taken <= MOST || transload_core::mutant!("profiler/distributions-have-a-limit"))
            .then(|| Box::new(distribution))
    }
}

impl Drop for Distribution {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Times in nanoseconds, whose distribution is kept to two significant digits.
#[derive(Debug, Default)]
pub(crate) struct Times {
    count: u64,
    sum: u64,
    /// `None` without any; most kinds of operations of most streams have none.
    distribution: Option<Box<Distribution>>,
    /// Whether there was no room for the distribution: that of a part would be a wrong one.
    is_without: bool,
}

impl Times {
    pub(crate) fn add(&mut self, nanoseconds: u64, room: &Room) {
        (self.count, self.sum) = (self.count.saturating_add(1), self.sum.saturating_add(nanoseconds));
        if let Some(histogram) = self.reaching(nanoseconds, room) {
            let _in_range = histogram.record(nanoseconds);
        }
    }

    /// Adds the times of another one.
    pub(crate) fn merge(&mut self, other: &Self, room: &Room) {
        (self.count, self.sum) = (self.count.saturating_add(other.count), self.sum.saturating_add(other.sum));
        if other.is_without {
            (self.is_without, self.distribution) = (true, None);
        }
        if let Some(theirs) = &other.distribution
            && let Some(ours) = self.reaching(theirs.histogram.max(), room)
        {
            let _in_range = ours.add(&theirs.histogram);
        }
    }

    /// Returns the histogram, which has room for a time; `None` if it takes too much. It never comes back then.
    fn reaching(&mut self, longest: u64, room: &Room) -> Option<&mut Histogram<u64>> {
        let reaches = self.distribution.as_ref().is_some_and(|it| it.histogram.high() >= longest);
        if !reaches && !self.is_without {
            let former = self.distribution.take();
            self.distribution = Distribution::new(longest, room);
            self.is_without = self.distribution.is_none();
            if let (Some(new), Some(former)) = (&mut self.distribution, former) {
                let _in_range = new.histogram.add(&former.histogram);
            }
        }
        self.distribution.as_mut().map(|distribution| &mut distribution.histogram)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn report(&self) -> TimesReport {
        let percentiles = self.distribution.as_deref().map(|Distribution { histogram, .. }| {
            let at = |quantile| histogram.value_at_quantile(quantile);
            Percentiles {
                p10_ns: at(0.1),
                p50_ns: at(0.5),
                p90_ns: at(0.9),
                p99_ns: at(0.99),
                max_ns: histogram.max(),
            }
        });
        TimesReport { count: self.count, total_ns: self.sum, percentiles }
    }
}
