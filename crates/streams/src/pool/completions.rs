//! How long operations of each workload took: the latest of each, and their average for weighing.

use std::{collections::VecDeque, fmt, sync::atomic::Ordering, time::Duration};

use parking_lot::Mutex;
use transload_core::WorkloadType;

use super::{lane::Weights, strategy::WORKLOADS};

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
