//! What is counted of the transfers of one path by one method, and who is told of their ends.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use transload_core::{
    BriefLock, Completion, DeviceId, Error, Fence, Observer, SizeClass, Timing, TransferEvent,
    TransferMethod, TransferPath, TransferReport,
};

use transload_executor::place_of_thread;

use crate::{
    Sampling, TransferStats,
    histogram::Histogram,
    lost::LostDevices,
    unobserved::{Unobserved, UnobservedEnd, UnobservedList, UnseenFailure},
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
    /// Transfers that are in no row.
    pub(crate) unobserved: UnobservedList,
}

/// Every row, sorted. Locked only where routes are found and statistics are read.
pub(crate) struct Rows {
    watch: Arc<Watch>,
    rows: Mutex<BTreeMap<(TransferPath, TransferMethod, usize), Arc<Row>>>,
}

/// A path and a method, as seen from one place: threads that transfer side by side count in rows of their own. Each size class is counted under a lock of its own, held for a few additions.
pub(crate) struct Row {
    path: TransferPath,
    method: TransferMethod,
    watch: Arc<Watch>,
    /// Made at the first transfer of the class.
    classes: [OnceLock<Box<Class>>; SizeClass::ALL.len()],
}

#[derive(Default)]
#[repr(align(128))]
struct Class {
    /// How many asked whether they are to be measured.
    asked: AtomicU64,
    counts: BriefLock<Counts>,
    unobserved: UnobservedList,
}

#[derive(Clone, Default)]
struct Counts {
    transfers: u64,
    bytes: u64,
    failures: u64,
    abandoned: u64,
    measured: u64,
    measured_bytes: u64,
    time: Duration,
    best_rate: Option<f64>,
    latencies: Histogram,
    simulated: bool,
}

impl Rows {
    pub(crate) fn new(watch: Arc<Watch>) -> Self {
        Self { watch, rows: Mutex::default() }
    }

    /// Returns the row at the calling thread's place.
    pub(crate) fn row(&self, path: TransferPath, method: TransferMethod) -> Arc<Row> {
        let mut rows = self.rows.lock();
        let row = rows.entry((path, method, place_of_thread())).or_insert_with(|| {
            Arc::new(Row { path, method, watch: Arc::clone(&self.watch), classes: Default::default() })
        });
        Arc::clone(row)
    }

    /// Every row, sorted by path and method.
    pub(crate) fn all(&self) -> Vec<Arc<Row>> {
        self.rows.lock().values().cloned().collect()
    }

    /// The statistics of the classes that have any, sorted by path, method and size.
    pub(crate) fn stats(&self) -> Vec<TransferStats> {
        let rows = self.all();
        let of_one = rows.chunk_by(|row, next| (row.path, row.method) == (next.path, next.method));
        of_one.flat_map(|rows| SizeClass::ALL.into_iter().filter_map(|class| stats(rows, class))).collect()
    }
}

impl Row {
    fn class(&self, class: SizeClass) -> Option<&Class> {
        self.classes.get(class.index()).map(|class| &**class.get_or_init(Box::default))
    }

    fn count(&self, report: &TransferReport, change: impl FnOnce(&mut Counts)) {
        if let Some(class) = self.class(report.size_class()) {
            let mut counts = class.counts.lock();
            counts.simulated |= report.simulated;
            change(&mut counts);
        }
    }

    /// Counts the end of a transfer whose handle was dropped.
    fn settle(&self, class: &Class, end: UnobservedEnd) {
        match end.outcome {
            Ok(moving) => class.counts.lock().add(end.transfer.bytes, moving),
            Err(error) => {
                class.counts.lock().failures += 1;
                self.watch.fail(end.transfer.lane, &error);
            }
        }
    }

    /// Counts every unobserved end so far; with `wait` also those to come, of what was submitted until now.
    pub(crate) fn settle_all(&self, wait: bool) {
        for class in self.classes.iter().filter_map(OnceLock::get) {
            let settle = |end| self.settle(class, end);
            if wait { class.unobserved.wait_for_all(settle) } else { class.unobserved.check_all(settle) }
        }
    }

    /// Whether the next transfer of `bytes` is measured.
    pub(crate) fn timing(&self, bytes: u64, wanted: Option<Timing>) -> Timing {
        if let Some(timing) = wanted {
            return timing;
        }
        let sampling = self.watch.sampling;
        let taken = match (sampling, self.class(SizeClass::of(bytes))) {
            (Sampling::Off, _) | (_, None) => false,
            (_, Some(class)) => {
                // Threads that share a place may count one less: it only chooses which transfers are measured.
                let number = class.asked.load(Ordering::Relaxed);
                class.asked.store(number + 1, Ordering::Relaxed);
                sampling.takes(number)
            }
        };
        if taken { Timing::Measured } else { Timing::Off }
    }

    pub(crate) fn submitted(&self, report: &TransferReport) {
        self.watch.tell(TransferEvent::Submitted(report));
        if let Some(class) = self.class(report.size_class()) {
            class.unobserved.check_few(|end| self.settle(class, end));
        }
    }

    /// Forgets what was counted, and measures the next one first again. What is in flight counts when it ends.
    pub(crate) fn clear(&self) {
        for class in self.classes.iter().filter_map(OnceLock::get) {
            class.asked.store(0, Ordering::Relaxed);
            *class.counts.lock() = Counts::default();
        }
    }
}

/// The statistics of a class of one path and method, from all places.
fn stats(rows: &[Arc<Row>], size_class: SizeClass) -> Option<TransferStats> {
    let first = rows.first()?;
    let mut counts = Counts::default();
    for row in rows {
        if let Some(class) = row.classes.get(size_class.index()).and_then(OnceLock::get) {
            counts.merge(&class.counts.lock());
        }
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
        sampling: first.watch.sampling,
        simulated: counts.simulated,
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
        self.simulated |= other.simulated;
    }

    fn add(&mut self, bytes: u64, moving: Option<Duration>) {
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

impl Completion for Row {
    fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>) {
        match outcome {
            Ok(()) => {
                self.count(report, |counts| {
                    counts.add(report.bytes, report.moving);
                    counts.latencies.record(report.elapsed);
                });
                self.watch.tell(TransferEvent::Completed(report));
            }
            Err(error) => {
                self.watch.lost.note(report.lane, error);
                self.count(report, |counts| counts.failures += 1);
                self.watch.tell(TransferEvent::Failed(report, error));
            }
        }
    }

    fn abandoned(&self, report: &TransferReport, fence: &Fence) {
        self.count(report, |counts| counts.abandoned += 1);
        self.watch.tell(TransferEvent::Abandoned(report));
        if let Some(class) = self.class(report.size_class()) {
            class.unobserved.add(Unobserved::new(report, fence), |end| self.settle(class, end));
        }
    }

    fn refusal_dropped(&self, error: &Error) {
        self.watch.unseen.note(error);
    }
}

impl Watch {
    pub(crate) fn tell(&self, event: TransferEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer.transfer(event);
        }
    }

    /// Remembers a failure that nobody saw.
    fn fail(&self, lane: DeviceId, error: &Error) {
        self.lost.note(lane, error);
        self.unseen.note(error);
    }

    fn settle(&self, end: UnobservedEnd) {
        if let Err(error) = end.outcome {
            self.fail(end.transfer.lane, &error);
        }
    }

    /// Keeps a transfer that is in no row, until its end is known.
    pub(crate) fn keep(&self, report: &TransferReport, fence: &Fence) {
        self.unobserved.add(Unobserved::new(report, fence), |end| self.settle(end));
    }

    /// Waits for the transfers that are in no row and that nobody waits for.
    pub(crate) fn settle_all(&self) {
        self.unobserved.wait_for_all(|end| self.settle(end));
    }
}

/// For replays and for transfers that were refused: they are in no statistics of a path.
impl Completion for Watch {
    fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>) {
        match outcome {
            Ok(()) => self.tell(TransferEvent::Completed(report)),
            Err(error) => {
                self.lost.note(report.lane, error);
                self.tell(TransferEvent::Failed(report, error));
            }
        }
    }

    fn abandoned(&self, report: &TransferReport, fence: &Fence) {
        self.tell(TransferEvent::Abandoned(report));
        self.keep(report, fence);
    }

    fn refusal_dropped(&self, error: &Error) {
        self.unseen.note(error);
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row({} by {})", self.path, self.method)
    }
}
