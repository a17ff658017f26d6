//! What is counted of the transfers of one path by one method, and who is told of their ends.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use transload_core::{
    BriefLock, Error, Observer, RefusalHandler, Result, SizeClass, TransferEvent, TransferMethod,
    TransferPath, TransferReport,
};
use transload_executor::place_of_thread;

use crate::{
    Sampling, TransferStats,
    stats::{
        histogram::Histogram,
        lost::LostDevices,
        unobserved::{UnobservedTransfers, UnseenFailure},
    },
};

/// Whom every transfer's end concerns.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) sampling: Sampling,
    pub(crate) lost: LostDevices,
    pub(crate) refused: AtomicU64,
    /// The first failure that nobody saw, for the next `drain`.
    pub(crate) unseen: UnseenFailure,
    pub(crate) unobserved: UnobservedTransfers,
}

impl Watch {
    pub(crate) fn tell(&self, event: TransferEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer.transfer(event);
        }
    }

    /// Tells the end of a transfer that somebody waited for.
    pub(crate) fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>) {
        match outcome {
            Ok(()) => self.tell(TransferEvent::Completed(report)),
            Err(error) => {
                self.lost.note(report.lane, error);
                self.tell(TransferEvent::Failed(report, error));
            }
        }
    }
}

impl RefusalHandler for Watch {
    fn refusal_dropped(&self, error: &Error) {
        self.unseen.note(error);
    }
}

/// Every row, sorted. Locked only where routes are found and statistics are read.
#[derive(Default)]
pub(crate) struct Rows(Mutex<BTreeMap<(TransferPath, TransferMethod, usize), Arc<Row>>>);

/// A path and a method, as seen from one place: threads that transfer side by side count in rows of their own. Each size class
/// is counted under a lock of its own, held for a few additions. It is aligned as [`Known`](crate::planning::candidate::Known) is.
#[repr(align(128))]
pub(crate) struct Row {
    pub(crate) path: TransferPath,
    pub(crate) method: TransferMethod,
    simulated: bool,
    /// Made at the first end of the class.
    classes: [OnceLock<Box<BriefLock<Counts>>>; SizeClass::ALL.len()],
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

impl Rows {
    /// Returns the row at the calling thread's place.
    pub(crate) fn row(&self, path: TransferPath, method: TransferMethod, simulated: bool) -> Arc<Row> {
        let mut rows = self.0.lock();
        let row = rows
            .entry((path, method, place_of_thread()))
            .or_insert_with(|| Arc::new(Row { path, method, simulated, classes: Default::default() }));
        Arc::clone(row)
    }

    /// Forgets what was counted. What is in flight counts when it ends.
    pub(crate) fn clear(&self) {
        let rows = self.0.lock();
        let counted = rows.values().flat_map(|row| row.classes.iter().filter_map(OnceLock::get));
        counted.for_each(|counts| *counts.lock() = Counts::default());
    }

    /// The statistics of the classes that have any, sorted by path, method and size.
    pub(crate) fn stats(&self, sampling: Sampling) -> Vec<TransferStats> {
        let rows: Vec<_> = self.0.lock().values().cloned().collect();
        let of_one = rows.chunk_by(|row, next| (row.path, row.method) == (next.path, next.method));
        let all = of_one.flat_map(|rows| SizeClass::ALL.map(|class| stats(rows, class, sampling)));
        all.flatten().collect()
    }
}

impl Row {
    /// Changes what is counted of transfers of so many bytes.
    pub(crate) fn count(&self, bytes: u64, change: impl FnOnce(&mut Counts)) {
        if let Some(class) = self.classes.get(SizeClass::of(bytes).index()) {
            change(&mut class.get_or_init(Box::default).lock());
        }
    }
}

/// The statistics of a class of one path and method, from all places.
fn stats(rows: &[Arc<Row>], size_class: SizeClass, sampling: Sampling) -> Option<TransferStats> {
    let first = rows.first()?;
    let mut counts = Counts::default();
    for class in rows.iter().filter_map(|row| row.classes.get(size_class.index())?.get()) {
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
