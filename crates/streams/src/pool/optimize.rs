//! How long operations of each workload took, and another strategy or split of streams from that.

use std::{collections::VecDeque, fmt, sync::atomic::Ordering, time::Duration};

use parking_lot::Mutex;
use transload_core::WorkloadType;

use super::{
    AdvancedStreamPool, AllocationStrategy, WorkloadSplit, priority_group::Weights, strategy::WORKLOADS,
};

/// How many completions a decision needs.
const ENOUGH: u64 = 32;
/// From this ratio of average times on, short work must not queue behind long work.
const FAR_APART: f64 = 4.0;
/// Up to this spread, operations of a workload are taken to be alike.
const ALIKE: f64 = 0.5;

/// What [`AdvancedStreamPool::optimize_configuration`] did, and why. Prints as a few lines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Optimization {
    /// Strategy and split before.
    pub before: (AllocationStrategy, WorkloadSplit),
    /// Strategy and split from now on.
    pub after: (AllocationStrategy, WorkloadSplit),
    /// Why.
    pub reason: String,
    /// What was recorded since the last decision.
    pub seen: Vec<WorkloadSummary>,
}

impl Optimization {
    /// Whether anything is different now.
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
    /// Sets strategy and split by what was recorded since the last decision, and says what it changed and why. With fewer than
    /// 32 completions it changes nothing.
    ///
    /// - Average times of the workloads differ by 4 times or more: [`AllocationStrategy::Workload`], streams in proportion to
    ///   each workload's time.
    /// - All operations take about the same time: [`AllocationStrategy::RoundRobin`].
    /// - Otherwise: [`AllocationStrategy::LoadBalanced`].
    pub fn optimize_configuration(&self) -> Optimization {
        let seen = self.completions.summaries();
        let before = (self.strategy(), self.split());
        let count = seen.iter().fold(0_u64, |sum, summary| sum.saturating_add(summary.count));
        if count < ENOUGH {
            let reason = format!("{count} completions were recorded, a decision needs {ENOUGH}");
            return Optimization { before, after: before, reason, seen };
        }
        let (strategy, split, reason) = decide(&seen, before.1, *self.bounds.end());
        self.configure(strategy, split);
        self.completions.take_note();
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

/// Shares streams out in proportion to each workload's time: one to each that there is, and each further one to whom a stream
/// has the most time to serve.
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
        let neediest = seen.iter().max_by(|a, b| load(a).total_cmp(&load(b)));
        if let Some(neediest) = neediest {
            counts[neediest.workload as usize] += 1;
        }
    }
    WorkloadSplit::from_counts(counts)
}

/// How many durations of each workload are kept.
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
    /// How many were recorded since the pool was last optimised.
    fresh: u64,
}

/// What was recorded of one workload since the pool was last optimised.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkloadSummary {
    /// Which.
    pub workload: WorkloadType,
    /// How many operations.
    pub count: u64,
    /// How long one took, on average over the latest 256.
    pub mean: Duration,
    /// How much they differ: their standard deviation as a part of the mean.
    pub spread: f64,
}

impl WorkloadSummary {
    /// The time of all of them, in seconds.
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
        // So that no sum of the kept ones overflows.
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

    /// What was recorded since the last [`take_note`](Self::take_note), of each workload that there was.
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

    /// What was recorded so far was considered; the next optimisation goes by what comes.
    pub(crate) fn take_note(&self) {
        self.recent.iter().for_each(|recent| recent.lock().fresh = 0);
    }
}
