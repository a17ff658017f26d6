//! Times of one kind of work: how much of it, and how it is distributed.

use hdrhistogram::Histogram;

use crate::report::{Percentiles, TimesReport};

/// Times in nanoseconds, kept to two significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    sum: u64,
    /// `None` if the library refused to make one, which it does only for digits out of its range.
    histogram: Option<Histogram<u64>>,
}

impl Default for Times {
    fn default() -> Self {
        /// Significant digits.
        const DIGITS: u8 = 2;
        Self { sum: 0, histogram: Histogram::new(DIGITS).ok() }
    }
}

impl Times {
    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.sum = self.sum.saturating_add(nanoseconds);
        if let Some(histogram) = &mut self.histogram {
            // It grows, so no value is out of its range.
            let _in_range = histogram.record(nanoseconds);
        }
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
        TimesReport {
            count: self.histogram.as_ref().map_or(0, Histogram::len),
            total_ns: self.sum,
            percentiles,
        }
    }
}
