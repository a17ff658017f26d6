//! Repeated measurements of one copy: their median, and how far it can be from the true one.

use std::time::Duration;

use super::result::MeasuredTime;

/// Fewest measurements.
const FEWEST: usize = 5;
/// Most measurements.
const MOST: usize = 301;
/// Noise, relative to the median, at which no more measurements are taken.
const ENOUGH: f64 = 0.02;

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

    /// Returns whether further measurements are not worth their time, of which there is `share`.
    pub(super) fn is_enough(&self, share: Duration) -> bool {
        let count = self.times.len();
        if count < FEWEST {
            return false;
        }
        let noise = self.noise().as_secs_f64();
        count >= MOST || self.spent >= share || noise <= ENOUGH * self.median().as_secs_f64()
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
