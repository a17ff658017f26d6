//! Statistics of one path and method.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, atomic::AtomicU8},
    time::Duration,
};

use dashmap::DashMap;
use transload_core::{SizeClass, SpinLock, TransferMethod, TransferPath};
use transload_executor::thread_shard;

use crate::{Sampling, TransferStats, stats::histogram::Histogram};

/// All entries. Used only to find routes and to read statistics.
#[derive(Default)]
pub(crate) struct StatsTable(DashMap<(TransferPath, TransferMethod), PathEntry>);

/// The statistics of one path and method, by shard of threads.
#[derive(Default)]
struct PathEntry {
    warm: Arc<AtomicU8>,
    shards: BTreeMap<usize, Arc<PathStats>>,
}

/// The statistics of one path and method in one shard of threads. Each size class has its own lock, held for a few
/// additions. Aligned like [`CandidateInfo`](crate::planning::candidate::CandidateInfo).
#[repr(align(128))]
pub(crate) struct PathStats {
    pub(crate) path: TransferPath,
    pub(crate) method: TransferMethod,
    simulated: bool,
    /// The priorities with which a transfer was submitted before, from any place: a bit for each.
    pub(crate) warm: Arc<AtomicU8>,
    /// Created when the first transfer of the class ends.
    classes: [OnceLock<Box<SpinLock<Counts>>>; SizeClass::ALL.len()],
}

#[derive(Clone, Default)]
pub(crate) struct Counts {
    transfers: u64,
    bytes: u64,
    pub(crate) failures: u64,
    pub(crate) abandoned: u64,
    measured: u64,
    measured_bytes: u64,
    time: Duration,
    best_rate: Option<f64>,
    pub(crate) latencies: Histogram,
}

impl StatsTable {
    /// Returns the entry of the calling thread's shard.
    pub(crate) fn get_or_create(
        &self,
        path: TransferPath,
        method: TransferMethod,
        simulated: bool,
    ) -> Arc<PathStats> {
        let mut entry = self.0.entry((path, method)).or_default();
        let PathEntry { warm, shards } = &mut *entry;
        let stats = shards.entry(thread_shard()).or_insert_with(|| {
            let warm = Arc::clone(warm);
            Arc::new(PathStats { path, method, simulated, warm, classes: Default::default() })
        });
        Arc::clone(stats)
    }

    /// Clears all counts. Transfers in flight count when they end.
    pub(crate) fn clear(&self) {
        for entry in &self.0 {
            let classes = entry.shards.values().flat_map(|stats| &stats.classes);
            classes.filter_map(OnceLock::get).for_each(|counts| *counts.lock() = Counts::default());
        }
    }

    /// Returns the statistics of non-empty classes, sorted by path, method and size.
    pub(crate) fn collect(&self, sampling: Sampling) -> Vec<TransferStats> {
        let shards = |entry: &PathEntry| entry.shards.values().cloned().collect::<Vec<_>>();
        let mut entries: Vec<_> = self.0.iter().map(|entry| (*entry.key(), shards(&entry))).collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        let all = entries
            .iter()
            .flat_map(|(_, shards)| SizeClass::ALL.map(|class| merged(shards, class, sampling)));
        all.flatten().collect()
    }
}

impl PathStats {
    /// Changes the counts of the size class of `bytes`.
    pub(crate) fn count(&self, bytes: u64, change: impl FnOnce(&mut Counts)) {
        if let Some(class) = self.classes.get(SizeClass::of(bytes).index()) {
            change(&mut class.get_or_init(Box::default).lock());
        }
    }
}

/// Merges a size class of one path and method from all shards.
fn merged(entries: &[Arc<PathStats>], size_class: SizeClass, sampling: Sampling) -> Option<TransferStats> {
    let first = entries.first()?;
    let mut counts = Counts::default();
    for class in entries.iter().filter_map(|entry| entry.classes.get(size_class.index())?.get()) {
        counts.merge(&class.lock());
    }
    (counts.transfers + counts.failures + counts.abandoned > 0).then(|| TransferStats {
        path: first.path,
        method: first.method,
        size_class,
        transfers: counts.transfers,
        bytes: counts.bytes,
        failures: counts.failures,
        abandoned: counts.abandoned,
        measured: counts.measured,
        measured_bytes: counts.measured_bytes,
        time: counts.time,
        best_rate: counts.best_rate,
        latency_p50: counts.latencies.percentile(0.5),
        latency_p90: counts.latencies.percentile(0.9),
        latency_p99: counts.latencies.percentile(0.99),
        latency_max: counts.latencies.longest(),
        sampling,
        simulated: first.simulated,
    })
}

impl Counts {
    fn merge(&mut self, other: &Self) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.failures += other.failures;
        self.abandoned += other.abandoned;
        self.measured += other.measured;
        self.measured_bytes += other.measured_bytes;
        self.time += other.time;
        if other.best_rate > self.best_rate {
            self.best_rate = other.best_rate;
        }
        self.latencies.merge(&other.latencies);
    }

    pub(crate) fn add(&mut self, bytes: u64, moving: Option<Duration>) {
        self.transfers += 1;
        self.bytes += bytes;
        if let Some(moving) = moving {
            self.measured += 1;
            self.measured_bytes += bytes;
            self.time += moving;
            let seconds = moving.as_secs_f64();
            let rate = (seconds > 0.0).then(|| bytes as f64 / seconds);
            if rate > self.best_rate {
                self.best_rate = rate;
            }
        }
    }
}
