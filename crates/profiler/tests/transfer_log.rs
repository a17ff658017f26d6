//! The records and totals of a transfer log.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use std::{sync::Arc, thread};

use transload_core::{
    DeviceId, Error, ErrorKind, MemoryKind, Observer as _, Place, TransferEvent, TransferMethod,
    TransferPath, TransferReport,
};
use transload_profiler::{Outcome, Totals, TransferLog};

fn report(bytes: u64) -> TransferReport {
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let path = TransferPath::new(host, host);
    TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cpu, bytes)
}

#[test]
fn every_end_counts_but_only_completed_bytes() {
    let log = TransferLog::with_capacity(8);
    let error = Error::new(ErrorKind::DeviceLost, "gone");
    for bytes in 1..=3 {
        log.transfer(TransferEvent::Submitted {
            report: &report(bytes),
            begun: std::time::Instant::now(),
            end: None,
        });
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
fn full_log_keeps_newest_and_counts_displaced() {
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
fn totals_during_transfers_are_consistent() {
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
