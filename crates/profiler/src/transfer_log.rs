//! A bounded log of transfers, with totals.

use std::collections::VecDeque;

use parking_lot::Mutex;
use transload_core::{Observer, TransferEvent, TransferReport};

use crate::{Outcome, Totals, TransferRecord};

/// Keeps records of the last transfers, and counts all of them.
///
/// Its memory is allocated when it is created: recording a transfer allocates nothing. Usable from any thread; a reader
/// blocks submitters only while records are copied.
///
/// ```
/// use transload_core::{DeviceId, MemoryKind, Observer, Place, TransferEvent};
/// use transload_core::{TransferMethod, TransferPath, TransferReport};
/// use transload_profiler::TransferLog;
///
/// let log = TransferLog::with_capacity(1000);
/// // A transfer manager does this for each transfer:
/// let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
/// let path = TransferPath::new(host, host);
/// let report = TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cpu, 4096);
/// let begun = std::time::Instant::now();
/// log.transfer(TransferEvent::Submitted { report: &report, begun, end: None });
/// log.transfer(TransferEvent::Completed(&report));
///
/// assert_eq!(log.totals().bytes, 4096);
/// println!("{}", log.totals());
/// ```
#[derive(Debug)]
pub struct TransferLog {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    records: VecDeque<TransferRecord>,
    totals: Totals,
    next: u64,
}

impl TransferLog {
    /// The largest capacity. Larger requests are reduced to it.
    pub const LARGEST_CAPACITY: usize = 1 << 20;

    /// Creates a log of at most `capacity` records. With 0 it only counts.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(Self::LARGEST_CAPACITY);
        let records = VecDeque::with_capacity(capacity);
        Self { capacity, state: Mutex::new(State { records, totals: Totals::default(), next: 0 }) }
    }

    /// Returns the most records that it keeps.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the current counts.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.state.lock().totals
    }

    /// Returns a copy of the records, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<TransferRecord> {
        // Allocate outside the lock.
        let mut copy = Vec::with_capacity(self.capacity);
        copy.extend(self.state.lock().records.iter().cloned());
        copy
    }

    /// Clears all records and counts. Sequence numbers continue.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.records.clear();
        state.totals = Totals::default();
    }

    fn ended(&self, outcome: Outcome, report: &TransferReport) {
        let report = report.clone();
        let mut state = self.state.lock();
        let totals = &mut state.totals;
        match outcome {
            Outcome::Completed => {
                totals.completed += 1;
                totals.bytes = totals.bytes.saturating_add(report.bytes);
            }
            Outcome::Failed(_) => totals.failed += 1,
            Outcome::Abandoned => totals.abandoned += 1,
        }
        totals.simulated += u64::from(report.simulated);
        let sequence = state.next;
        state.next += 1;
        if state.records.len() >= self.capacity {
            state.totals.displaced += 1;
            if state.records.pop_front().is_none() {
                return;
            }
        }
        state.records.push_back(TransferRecord { sequence, outcome, report });
    }
}

impl Observer for TransferLog {
    fn transfer(&self, event: TransferEvent<'_>) {
        match event {
            TransferEvent::Submitted { .. } => self.state.lock().totals.submitted += 1,
            TransferEvent::Completed(report) => self.ended(Outcome::Completed, report),
            TransferEvent::Failed(report, error) => self.ended(Outcome::Failed(error.kind()), report),
            TransferEvent::Abandoned(report) => self.ended(Outcome::Abandoned, report),
            // Events added later are ignored.
            _ => {}
        }
    }
}
