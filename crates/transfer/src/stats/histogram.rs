//! A histogram of latencies with buckets of a fixed relative width.

use std::time::Duration;

/// Buckets per power of two.
const CUTS: u64 = 8;
const CUT_BITS: u32 = CUTS.trailing_zeros();
/// Up to 2^43 ns, which is 2.4 hours.
const LARGEST_POWER: u32 = 42;
const BUCKETS: usize = (LARGEST_POWER - CUT_BITS + 2) as usize * CUTS as usize;

/// Counts of durations. A percentile is at most 1/8 too large, never too small; below 8 ns it is exact. Durations above
/// 2.4 hours count as the longest seen.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: [u64; BUCKETS],
    total: u64,
    longest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0, longest: 0 }
    }
}

fn bucket(nanos: u64) -> usize {
    let Some(power) = nanos.checked_ilog2().filter(|power| *power >= CUT_BITS) else {
        return nanos as usize;
    };
    let cut = (nanos >> (power - CUT_BITS)) % CUTS;
    (u64::from(power - CUT_BITS + 1) * CUTS + cut) as usize
}

/// Returns the largest duration of a bucket, in nanoseconds.
fn upper_edge(bucket: usize) -> u64 {
    let (octave, cut) = (bucket as u64 / CUTS, bucket as u64 % CUTS);
    match octave.checked_sub(1) {
        None => cut,
        Some(shift) => ((CUTS + cut + 1) << shift) - 1,
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(nanos).min(BUCKETS - 1)) {
            *count += 1;
        }
        self.total += 1;
        self.longest = self.longest.max(nanos);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the duration that a share (0 to 1) of all do not exceed; `None` if empty.
    pub(crate) fn percentile(&self, share: f64) -> Option<Duration> {
        let wanted = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        let edge = if bucket == BUCKETS - 1 { self.longest } else { upper_edge(bucket) };
        Some(Duration::from_nanos(edge.min(self.longest)))
    }

    pub(crate) fn longest(&self) -> Option<Duration> {
        (self.total > 0).then(|| Duration::from_nanos(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_adjacent() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(upper_edge(index)), index);
            assert_eq!(bucket(upper_edge(index) + 1), index + 1);
        }
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_large() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.percentile(0.5), histogram.longest()), (None, None));
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (share, exact) in [(0.0, 1e-6), (0.5, 500e-6), (0.9, 900e-6), (0.99, 990e-6), (1.0, 1000e-6)] {
            let got = histogram.percentile(share).unwrap().as_secs_f64();
            assert!(got >= exact && got <= exact * 1.125, "{share}: {got}");
        }
        assert_eq!(histogram.longest(), Some(Duration::from_millis(1)));
    }

    #[test]
    fn durations_above_last_bucket_are_counted() {
        let mut histogram = Histogram::default();
        let day = Duration::from_secs(86_400);
        histogram.record(day);
        assert_eq!(histogram.percentile(0.5), Some(day));
        histogram.record(Duration::MAX);
        assert_eq!(histogram.longest(), Some(Duration::from_nanos(u64::MAX)));
    }
}
