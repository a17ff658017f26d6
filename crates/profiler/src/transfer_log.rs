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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use transload_core::{
        DeviceId, Error, ErrorKind, MemoryKind, Place, TransferMethod, TransferPath, TransferReport,
    };

    use super::*;

    fn report(bytes: u64) -> TransferReport {
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        let path = TransferPath::new(host, host);
        TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cpu, bytes)
    }

    #[test]
    fn every_end_is_counted_and_only_completed_bytes_are_bytes() {
        let log = TransferLog::with_capacity(8);
        let error = Error::new(ErrorKind::DeviceLost, "gone");
        for bytes in 1..=3 {
            log.transfer(TransferEvent::Submitted(&report(bytes)));
        }
        log.transfer(TransferEvent::Completed(&report(1)));
        log.transfer(TransferEvent::Failed(&report(2), &error));
        log.transfer(TransferEvent::Abandoned(&report(3)));
        let totals = log.totals();
        assert_eq!((totals.submitted, totals.ended(), totals.bytes), (3, 3, 1));
        let outcomes: Vec<Outcome> = log.records().into_iter().map(|record| record.outcome).collect();
        let expected = [Outcome::Completed, Outcome::Failed(ErrorKind::DeviceLost), Outcome::Abandoned];
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn a_full_log_keeps_the_newest_and_counts_what_it_displaced() {
        let log = TransferLog::with_capacity(3);
        for bytes in 0..10 {
            log.transfer(TransferEvent::Completed(&report(bytes)));
        }
        let sequences: Vec<u64> = log.records().into_iter().map(|record| record.sequence).collect();
        assert_eq!(sequences, [7, 8, 9]);
        assert_eq!((log.totals().completed, log.totals().displaced), (10, 7));
    }

    #[test]
    fn a_log_without_room_only_counts() {
        let log = TransferLog::with_capacity(0);
        log.transfer(TransferEvent::Completed(&report(5)));
        assert!(log.records().is_empty());
        assert_eq!((log.totals().completed, log.totals().displaced), (1, 1));
    }

    #[test]
    fn no_capacity_is_too_large_to_ask_for() {
        assert_eq!(TransferLog::with_capacity(usize::MAX).capacity(), TransferLog::LARGEST_CAPACITY);
    }

    #[test]
    fn simulated_transfers_are_named_as_such() {
        let log = TransferLog::with_capacity(1);
        let mut simulated = report(1);
        log.transfer(TransferEvent::Completed(&simulated));
        assert!(!log.totals().to_string().contains("simulated"));
        simulated.simulated = true;
        log.transfer(TransferEvent::Completed(&simulated));
        assert!(log.totals().to_string().contains("1 simulated"));
        assert!(log.records().first().unwrap().to_string().contains("simulated"));
    }

    #[test]
    fn clearing_forgets_records_and_counts_but_not_the_sequence() {
        let log = TransferLog::with_capacity(4);
        log.transfer(TransferEvent::Completed(&report(1)));
        log.clear();
        assert_eq!(log.totals(), Totals::default());
        log.transfer(TransferEvent::Completed(&report(1)));
        assert_eq!(log.records().first().unwrap().sequence, 1);
    }

    #[test]
    fn totals_taken_while_transfers_end_belong_to_one_moment() {
        let log = Arc::new(TransferLog::with_capacity(16));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let log = Arc::clone(&log);
                thread::spawn(move || {
                    for _ in 0..1000 {
                        log.transfer(TransferEvent::Completed(&report(2)));
                    }
                })
            })
            .collect();
        while log.totals().completed < 4000 {
            let totals = log.totals();
            assert_eq!(totals.bytes, 2 * totals.completed);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(log.records().len(), 16);
    }
}
