//! Times of one kind of work: how much of it, and how it is distributed.

use hdrhistogram::Histogram;

use crate::stream_report::{Percentiles, TimesReport};

/// Significant digits.
const DIGITS: u8 = 2;

/// Times in nanoseconds, kept to two significant digits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    sum: u64,
    /// `None` without any; most kinds of operations of most streams have none. Each has 1 KiB for each doubling of the longest time from
    /// 128 ns on: 24 KiB for a second, 41 for a day.
    histogram: Option<Box<Histogram<u64>>>,
}

impl Times {
    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.sum = self.sum.saturating_add(nanoseconds);
        if let Some(histogram) = self.histogram() {
            // It grows, so no value is out of its range.
            let _in_range = histogram.record(nanoseconds);
        }
    }

    /// Adds the times of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.sum = self.sum.saturating_add(other.sum);
        if let (Some(theirs), Some(ours)) = (&other.histogram, self.histogram()) {
            let _in_range = ours.add(&**theirs);
        }
    }

    /// `None` if the library refuses to make one, which it does only for digits out of its range.
    fn histogram(&mut self) -> Option<&mut Histogram<u64>> {
        if self.histogram.is_none() {
            self.histogram = Histogram::new(DIGITS).ok().map(Box::new);
        }
        self.histogram.as_deref_mut()
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |histogram| histogram.len())
    }

    pub(crate) fn report(&self) -> TimesReport {
        let percentiles =
            self.histogram.as_ref().filter(|histogram| !histogram.is_empty()).map(|histogram| {
                let at = |quantile| histogram.value_at_quantile(quantile);
                Percentiles {
                    p10_ns: at(0.1),
                    p50_ns: at(0.5),
                    p90_ns: at(0.9),
                    p99_ns: at(0.99),
                    max_ns: histogram.max(),
                }
            });
        TimesReport { count: self.count(), total_ns: self.sum, percentiles }
    }
}
