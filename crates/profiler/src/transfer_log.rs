//! A log of bounded length: the last ends of transfers, and totals of all.

use std::collections::VecDeque;

use parking_lot::Mutex;
use transload_core::{Observer, TransferEvent, TransferReport};

use crate::{Outcome, Totals, TransferRecord};

/// Keeps the newest ends of transfers and counts all of them.
///
/// Its memory is taken when it is made: hearing of a transfer allocates nothing. It may be used from any thread; who
/// reads it holds up submitters only while records are copied.
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
/// log.transfer(TransferEvent::Submitted(&report));
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
    /// The largest capacity; a greater one that is asked for becomes this.
    pub const LARGEST_CAPACITY: usize = 1 << 20;

    /// A log of at most `capacity` records; with 0 it only counts.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(Self::LARGEST_CAPACITY);
        let records = VecDeque::with_capacity(capacity);
        Self { capacity, state: Mutex::new(State { records, totals: Totals::default(), next: 0 }) }
    }

    /// How many records it keeps at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The counts at this moment.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.state.lock().totals
    }

    /// A copy of the records, the oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<TransferRecord> {
        // The copy's memory is taken outside the lock.
        let mut copy = Vec::with_capacity(self.capacity);
        copy.extend(self.state.lock().records.iter().cloned());
        copy
    }

    /// Forgets all records and starts counting anew. Sequence numbers go on.
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
            TransferEvent::Submitted(_) => self.state.lock().totals.submitted += 1,
            TransferEvent::Completed(report) => self.ended(Outcome::Completed, report),
            TransferEvent::Failed(report, error) => self.ended(Outcome::Failed(error.kind()), report),
            TransferEvent::Abandoned(report) => self.ended(Outcome::Abandoned, report),
            // Core may learn to tell more than a log of ends has a use for.
            _ => {}
        }
    }
}
