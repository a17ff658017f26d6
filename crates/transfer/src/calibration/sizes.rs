//! The sizes that are measured, and which one is worth measuring next.

use std::collections::{BTreeMap, BTreeSet};

use transload_core::TransferMethod;

use super::MeasuredTime;

/// The time of a choice between two measured sizes over that of the best method there, at most, if there is time to measure more.
const REGRET: f64 = 1.08;
/// Ratio of a measured time to the one predicted from its neighbours, or the other way round, from which there is a step or a bend.
const ROUGH: f64 = 1.05;
/// Ratio of two sizes in a row up to which sizes between them are measured: where a curve is rough, where the fastest method changes, and
/// elsewhere.
const FINEST: [f64; 3] = [1.05, 1.2, 2.1];

/// Measured times by size.
#[derive(Default)]
pub(super) struct Sizes {
    times: BTreeMap<u64, Vec<(TransferMethod, MeasuredTime)>>,
    /// The sizes whose times are not what their neighbours predicted.
    rough: BTreeSet<u64>,
}

impl Sizes {
    pub(super) fn add(&mut self, bytes: u64, measured: Vec<(TransferMethod, MeasuredTime)>) {
        let (below, above) = (self.times.range(..bytes).next_back(), self.times.range(bytes..).next());
        if let (Some((low, at_low)), Some((high, at_high))) = (below, above) {
            let share = (bytes - low) as f64 / (high - low) as f64;
            let is_rough = measured.iter().any(|(method, time)| {
                let (Some(low), Some(high)) = (seconds(at_low, *method), seconds(at_high, *method)) else {
                    return false;
                };
                let ratio = time.median.as_secs_f64() / (low + share * (high - low));
                !(1.0 / ROUGH..=ROUGH).contains(&ratio)
            });
            if is_rough {
                self.rough.insert(bytes);
            }
        }
        self.times.insert(bytes, measured);
    }

    /// Returns a size between the two measured ones between which a choice may be the most wrong: if times only grow with size, a method
    /// takes at most its time at the larger size, and another one at least its time at the smaller one. First where the fastest method changes:
    /// there it is wrong if a curve only bends.
    pub(super) fn next_middle(&self) -> Option<u64> {
        let intervals = self.times.iter().zip(self.times.iter().skip(1));
        let worst = intervals.filter_map(|((low, at_low), (high, at_high))| {
            let chosen = [fastest(at_low)?, fastest(at_high)?];
            let pairs = choosable(at_high).flat_map(|slow| choosable(at_low).map(move |fast| (slow, fast)));
            let pairs = pairs.filter(|((slow, _), (fast, _))| slow != fast && chosen.contains(slow));
            let regret = pairs.map(|((_, slow), (_, fast))| slow / fast).fold(0.0, f64::max);
            let [rough, changing, usual] = FINEST;
            let finest = match chosen {
                _ if self.rough.contains(low) || self.rough.contains(high) => rough,
                [from, to] if from != to => changing,
                _ => usual,
            };
            let middle = (*low as f64 * *high as f64).sqrt() as u64;
            let is_coarse = *high as f64 / *low as f64 > finest && (low + 1..*high).contains(&middle);
            let is_changing = chosen[0] != chosen[1];
            (regret > REGRET && is_coarse).then_some((middle, is_changing, regret))
        });
        worst.max_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2))).map(|(middle, ..)| middle)
    }

    /// Returns the times of a method, by ascending size.
    pub(super) fn of(&self, method: TransferMethod) -> Vec<MeasuredTime> {
        self.times.values().flatten().filter(|(of, _)| *of == method).map(|(_, time)| *time).collect()
    }
}

/// Returns the methods that are chosen by their times, which a copy kernel is not, with these in seconds.
fn choosable(
    times: &[(TransferMethod, MeasuredTime)],
) -> impl Iterator<Item = (TransferMethod, f64)> + Clone + '_ {
    let by_time = times.iter().filter(|(method, _)| *method != TransferMethod::ZeroCopy);
    by_time.map(|(method, time)| (*method, time.median.as_secs_f64()))
}

fn fastest(times: &[(TransferMethod, MeasuredTime)]) -> Option<TransferMethod> {
    choosable(times).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(method, _)| method)
}

fn seconds(times: &[(TransferMethod, MeasuredTime)], method: TransferMethod) -> Option<f64> {
    times.iter().find(|(of, _)| *of == method).map(|(_, time)| time.median.as_secs_f64())
}
