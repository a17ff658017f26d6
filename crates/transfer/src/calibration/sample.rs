//! Repeated measurements of one copy: their median, and how far it can be from the true one.

use std::time::Duration;

use super::result::MeasuredTime;

/// Fewest measurements.
const FEWEST: usize = 5;
/// Most measurements.
const MOST: usize = 301;
/// Noise, relative to the median, at which no more measurements are taken.
const ENOUGH: f64 = 0.02;

/// Ratio of two medians up to which they are measured for longer, and how much longer.
const CLOSE: (f64, u32) = (1.1, 3);
/// Measurements that tell whether one is behind, and how many times as long it takes then.
const FEW: usize = 2;
const BEHIND: u32 = 3;
/// Ratio from which one is the fastest by far.
const FAR: f64 = 1.5;

/// Returns whether further measurements of one size are not worth their time, of which there is `share` for each method.
pub(super) fn are_enough<'a>(samples: impl Iterator<Item = &'a Sample> + Clone, share: Duration) -> bool {
    if samples.clone().any(|sample| sample.times.len() < FEWEST) {
        return false;
    }
    let mut medians: Vec<_> = samples.clone().map(|sample| sample.median().as_secs_f64()).collect();
    medians.sort_by(f64::total_cmp);
    let is_close = matches!(medians.as_slice(), [first, second, ..] if *second <= CLOSE.0 * first);
    let shares = u32::try_from(medians.len()).unwrap_or(u32::MAX);
    let limit = share.saturating_mul(if is_close { shares.saturating_mul(CLOSE.1) } else { shares });
    samples.clone().map(|sample| sample.spent).sum::<Duration>() >= limit
        || samples.clone().all(Sample::is_precise)
}

/// Sorts samples so that those which may still be the fastest come first, and returns these: a few measurements tell of the others that they
/// are not.
pub(super) fn contenders<T>(samples: &mut [(T, Sample)]) -> &mut [(T, Sample)] {
    let has_few = |sample: &Sample| sample.times.len() < FEW;
    // By the shortest times: one of few may be long for another reason.
    let best = samples.iter().filter(|(_, sample)| !has_few(sample)).map(|(_, sample)| sample.least()).min();
    let limit = best.map_or(Duration::MAX, |best| best.saturating_mul(BEHIND));
    samples.sort_by_key(|(_, sample)| !has_few(sample) && sample.least() > limit);
    let count = samples.partition_point(|(_, sample)| has_few(sample) || sample.least() <= limit);
    samples.split_at_mut(count).0
}

/// Returns whether one of several is the fastest by far, beyond noise.
pub(super) fn is_far_ahead<'a>(samples: impl Iterator<Item = &'a Sample>) -> bool {
    let mut all: Vec<_> = samples.collect();
    all.sort_by_key(|sample| sample.median());
    let are_measured = all.iter().all(|sample| sample.times.len() >= FEWEST);
    let is_ahead_of = |first: &Sample, second: &Sample| {
        second.median().saturating_sub(second.noise()).as_secs_f64()
            > FAR * (first.median() + first.noise()).as_secs_f64()
    };
    match all.as_slice() {
        [first, others @ ..] => {
            are_measured && others.first().is_none_or(|second| is_ahead_of(first, second))
        }
        [] => true,
    }
}

/// Measurements of one method and size.
#[derive(Default)]
pub(super) struct Sample {
    /// In ascending order.
    times: Vec<Duration>,
    spent: Duration,
}

impl Sample {
    /// Adds the time of one of `batch` copies in a row that took `all`.
    pub(super) fn add(&mut self, all: Duration, batch: u32) {
        let time = all / batch.max(1);
        let at = self.times.partition_point(|other| *other <= time);
        self.times.insert(at, time);
        self.spent += all;
    }

    /// Adds the time of what is no measurement to that which was spent.
    pub(super) fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    /// Returns whether more measurements would tell little.
    pub(super) fn is_precise(&self) -> bool {
        let count = self.times.len();
        count >= MOST || count >= FEWEST && self.noise().as_secs_f64() <= ENOUGH * self.median().as_secs_f64()
    }

    /// Returns the shortest time.
    pub(super) fn least(&self) -> Duration {
        self.times.first().copied().unwrap_or_default()
    }

    fn median(&self) -> Duration {
        self.times.get(self.times.len() / 2).copied().unwrap_or_default()
    }

    /// Half the width between two order statistics: the number of measurements below the true median is binomially distributed.
    fn noise(&self) -> Duration {
        let count = self.times.len();
        let reach = (0.98 * (count as f64).sqrt()).ceil() as usize;
        let middle = count / 2;
        let last = count.saturating_sub(1);
        let at = |index: usize| self.times.get(index).copied().unwrap_or_default();
        at((middle + reach).min(last)).saturating_sub(at(middle.saturating_sub(reach))) / 2
    }

    pub(super) fn result(&self, bytes: u64) -> MeasuredTime {
        let repetitions = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        // A clock may be coarser than a copy.
        let median = self.median().max(Duration::from_nanos(1));
        MeasuredTime { bytes, median, noise: self.noise(), repetitions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(times: &[u64]) -> Sample {
        let mut sample = Sample::default();
        times.iter().for_each(|time| sample.add(Duration::from_micros(*time), 1));
        sample
    }

    #[test]
    fn slow_ones_are_no_contenders_once_that_is_known() {
        let mut samples = [
            ("slow", sample(&[40, 40])),
            ("fast", sample(&[10, 12])),
            ("unknown", sample(&[90])),
            ("close", sample(&[20, 30])),
        ];
        let names: Vec<_> = contenders(&mut samples).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["fast", "unknown", "close"]);
        assert!(samples.iter().any(|(name, _)| *name == "slow"), "it keeps its measurements");
    }

    #[test]
    fn last_contender_is_far_ahead_when_it_was_measured() {
        assert!(!is_far_ahead([&sample(&[10; 4])].into_iter()));
        assert!(is_far_ahead([&sample(&[10; 5])].into_iter()));
        assert!(!is_far_ahead([&sample(&[10; 5]), &sample(&[12; 5])].into_iter()));
        assert!(is_far_ahead([&sample(&[10; 5]), &sample(&[30; 5])].into_iter()));
    }
}
