//! Recorded times of each workload, and the strategy and split chosen from them.

use std::{collections::VecDeque, fmt, sync::atomic::Ordering, time::Duration};

use parking_lot::Mutex;
use transload_core::WorkloadType;

use super::{
    AdvancedStreamPool, AllocationStrategy, WorkloadSplit, priority_group::Weights, strategy::WORKLOADS,
};

/// Number of completions that a decision needs.
const MIN_COMPLETIONS: u64 = 32;
/// Ratio of average times from which short work gets separate streams from long work.
const FAR_APART: f64 = 4.0;
/// Maximum spread of operations that count as alike.
const ALIKE: f64 = 0.5;

/// Result of [`AdvancedStreamPool::optimize_configuration`]. `Display` prints a few lines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Optimization {
    /// Strategy and split before.
    pub before: (AllocationStrategy, WorkloadSplit),
    /// Strategy and split after.
    pub after: (AllocationStrategy, WorkloadSplit),
    /// Reason for the decision.
    pub reason: String,
    /// Completions recorded since the last decision.
    pub seen: Vec<WorkloadSummary>,
}

impl Optimization {
    /// Returns whether anything changed.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.before != self.after
    }
}

impl fmt::Display for Optimization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((before, split_before), (after, split_after)) = (self.before, self.after);
        if before != after {
            write!(f, "{before} → {after}")?;
        } else {
            write!(f, "{after}, as before")?;
        }
        if split_before != split_after {
            write!(f, "; streams {split_before} → {split_after}")?;
        }
        write!(f, ": {}", self.reason)?;
        for summary in &self.seen {
            write!(f, "\n  {summary}")?;
        }
        Ok(())
    }
}

impl AdvancedStreamPool {
    /// Chooses strategy and split from the completions recorded since the last decision, and returns the change and its
    /// reason. Changes nothing before 32 completions.
    ///
    /// - Average times of the workloads differ 4 times or more: [`AllocationStrategy::Workload`], with streams in
    ///   proportion to each workload's time.
    /// - All operations take about the same time: [`AllocationStrategy::RoundRobin`].
    /// - Otherwise: [`AllocationStrategy::LoadBalanced`].
    pub fn optimize_configuration(&self) -> Optimization {
        let seen = self.completions.summaries();
        let before = (self.strategy(), self.split());
        let count = seen.iter().fold(0_u64, |sum, summary| sum.saturating_add(summary.count));
        if count < MIN_COMPLETIONS {
            let reason = format!("{count} completions were recorded, a decision needs {MIN_COMPLETIONS}");
            return Optimization { before, after: before, reason, seen };
        }
        let (strategy, split, reason) = decide(&seen, before.1, *self.bounds.end());
        self.configure(strategy, Some(split));
        self.completions.start_over();
        Optimization { before, after: (strategy, split), reason, seen }
    }
}

fn decide(
    seen: &[WorkloadSummary],
    split: WorkloadSplit,
    most: usize,
) -> (AllocationStrategy, WorkloadSplit, String) {
    let times = || seen.iter().map(|summary| summary.mean.as_secs_f64().max(1e-9));
    let (shortest, longest) =
        times().fold((f64::INFINITY, 0.0_f64), |(least, most), time| (least.min(time), most.max(time)));
    let ratio = longest / shortest;
    if ratio >= FAR_APART && most > 1 {
        let reason = format!(
            "the average times of the workloads differ {ratio:.0} times, so each has streams of its own and short work does not queue behind long work"
        );
        return (AllocationStrategy::Workload, in_proportion(seen, most), reason);
    }
    let spread = seen.iter().fold(0.0_f64, |most, summary| most.max(summary.spread));
    if ratio < FAR_APART && spread <= ALIKE {
        let reason = format!(
            "all take about the same time (averages within {ratio:.1} times, spread {:.0} %), so any stream is as good and the next in turn is cheapest",
            spread * 100.0
        );
        return (AllocationStrategy::RoundRobin, split, reason);
    }
    let reason = format!(
        "times differ within a workload (spread {:.0} %), so each goes where the least is outstanding",
        spread * 100.0
    );
    (AllocationStrategy::LoadBalanced, split, reason)
}

/// Distributes streams in proportion to each workload's time: one per recorded workload, and each further one to the
/// workload with the most time per stream.
fn in_proportion(seen: &[WorkloadSummary], most: usize) -> WorkloadSplit {
    if seen.len() > most {
        return WorkloadSplit::of(most);
    }
    let mut counts = [0; WORKLOADS.len()];
    for summary in seen {
        counts[summary.workload as usize] = 1;
    }
    for _ in seen.len()..most {
        let load =
            |summary: &WorkloadSummary| summary.seconds() / counts[summary.workload as usize].max(1) as f64;
        let busiest = seen.iter().max_by(|a, b| load(a).total_cmp(&load(b)));
        if let Some(busiest) = busiest {
            counts[busiest.workload as usize] += 1;
        }
    }
    WorkloadSplit::from_counts(counts)
}

/// Number of durations kept per workload.
const KEPT: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Completions {
    recent: [Mutex<Recent>; WORKLOADS.len()],
    weights: Weights,
}

#[derive(Debug, Default)]
struct Recent {
    nanos: VecDeque<u64>,
    sum: u64,
    /// Number recorded since the last decision.
    fresh: u64,
}

/// Completions of one workload since the last decision.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkloadSummary {
    /// Workload.
    pub workload: WorkloadType,
    /// Number of operations.
    pub count: u64,
    /// Average duration, over the latest 256.
    pub mean: Duration,
    /// Standard deviation divided by the mean.
    pub spread: f64,
}

impl WorkloadSummary {
    /// Returns the total time in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.mean.as_secs_f64() * self.count as f64
    }
}

impl fmt::Display for WorkloadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, count, mean, spread } = self;
        write!(f, "{count} × {workload:?} of {mean:.1?} ± {:.0} %", spread * 100.0)
    }
}

impl Completions {
    #[inline]
    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn record(&self, workload: WorkloadType, took: Duration) {
        // Limited, so that the sum of the kept durations does not overflow.
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / KEPT as u64);
        let mut recent = self.recent[workload as usize].lock();
        if recent.nanos.len() == KEPT {
            recent.sum -= recent.nanos.pop_front().unwrap_or(0);
        }
        recent.nanos.push_back(nanos);
        recent.sum += nanos;
        recent.fresh = recent.fresh.saturating_add(1);
        let mean = recent.sum / recent.nanos.len() as u64;
        self.weights[workload as usize].store(mean.max(1), Ordering::Relaxed);
    }

    pub(crate) fn average(&self, workload: WorkloadType) -> Option<Duration> {
        let recent = self.recent[workload as usize].lock();
        let count = recent.nanos.len() as u64;
        (count > 0).then(|| Duration::from_nanos(recent.sum / count))
    }

    /// Summarises what was recorded since the last [`start_over`](Self::start_over), per recorded workload.
    pub(crate) fn summaries(&self) -> Vec<WorkloadSummary> {
        let summary = |workload: WorkloadType| {
            let recent = self.recent[workload as usize].lock();
            let latest = usize::try_from(recent.fresh).unwrap_or(KEPT).min(recent.nanos.len());
            if latest == 0 {
                return None;
            }
            let of = || recent.nanos.iter().rev().take(latest).map(|nanos| *nanos as f64);
            let mean = of().sum::<f64>() / latest as f64;
            let variance = of().map(|nanos| (nanos - mean).powi(2)).sum::<f64>() / latest as f64;
            Some(WorkloadSummary {
                workload,
                count: recent.fresh,
                mean: Duration::from_secs_f64(mean / 1e9),
                spread: if mean > 0.0 { variance.sqrt() / mean } else { 0.0 },
            })
        };
        WORKLOADS.into_iter().filter_map(summary).collect()
    }

    /// Excludes the completions recorded so far from the next decision.
    pub(crate) fn start_over(&self) {
        self.recent.iter().for_each(|recent| recent.lock().fresh = 0);
    }
}
