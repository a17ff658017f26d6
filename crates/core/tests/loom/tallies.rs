//! Counts of a queue that several threads use.

use loom::{sync::Arc, thread};
use transload_core::OperationKind;

use crate::{model, tally::QueueTally};

/// Counts an operation of 10 bytes; returns whether it is timed.
fn count(tally: &QueueTally, attachment: u64) -> bool {
    tally.count((OperationKind::Copy, 10), attachment, (u64::MAX, 0), || false)
}

fn counted(tally: &QueueTally, attachment: u64) -> (u64, u64) {
    let copies = tally.counts(attachment)[OperationKind::Copy as usize];
    (copies.operations, copies.bytes)
}

#[test]
fn threads_that_race_for_the_first_operation_are_all_counted() {
    model(|| {
        let tally = Arc::new(QueueTally::default());
        count(&tally, 1);
        let other = Arc::clone(&tally);
        let other = thread::spawn(move || count(&other, 2));
        let timed = [count(&tally, 2), other.join().unwrap()];
        assert_eq!(counted(&tally, 2), (2, 20));
        assert_eq!(timed.iter().filter(|timed| **timed).count(), 1, "the first");
    });
}

#[test]
fn late_operation_of_an_earlier_sink_clears_nothing() {
    model(|| {
        let tally = Arc::new(QueueTally::default());
        let other = Arc::clone(&tally);
        let other = thread::spawn(move || count(&other, 1));
        count(&tally, 2);
        other.join().unwrap();
        count(&tally, 2);
        assert!(counted(&tally, 2).0 >= 2);
    });
}
