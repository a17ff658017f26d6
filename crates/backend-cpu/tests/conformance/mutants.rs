//! Each planted fault is found by its check.

use std::time::Duration;

use crate::{
    cpu,
    faulty::{Fault, Faulty},
    run,
};

/// Returns the names of the checks that fail with a fault.
fn failing(fault: Fault) -> Vec<&'static str> {
    // What a fault keeps from ending is waited for this long; without one, whatever the machine is busy with besides.
    let patience =
        if matches!(fault, Fault::None) { Duration::from_secs(30) } else { Duration::from_secs(1) };
    let outcome = run(Faulty::around(cpu(3, 4 << 20), fault), 5, patience);
    println!("{fault:?}: {outcome}");
    assert!(outcome.failures().all(|failure| failure.seed == 5 && !failure.details.is_empty()));
    outcome.failures().map(|failure| failure.check).collect()
}

#[track_caller]
fn is_found(fault: Fault, by: &[&str]) {
    // Of a busy machine a check may see too little in its time to find a fault; it never finds one that is not there.
    let mut found = Vec::new();
    for _ in 0..5 {
        found.extend(failing(fault));
        if by.iter().all(|check| found.contains(check)) {
            return;
        }
    }
    panic!("{fault:?} is not found by each of {by:?}, but by {found:?}");
}

#[test]
fn without_a_fault_nothing_is_found() {
    assert_eq!(failing(Fault::None), Vec::<&str>::new());
}

#[test]
fn faults_in_content_are_found() {
    is_found(Fault::CopiesOneByteShort, &["copies", "threads", "programs"]);
    is_found(Fault::WritesOneByteBeyond, &["copies", "programs"]);
    is_found(Fault::IgnoresTheSourcesOffset, &["copies", "within", "programs"]);
    is_found(Fault::FillsWithOneByteOnly, &["fills", "programs"]);
    is_found(Fault::ForgetsTheLastPair, &["batches", "programs"]);
    is_found(Fault::CopiesTheFirstRowOnly, &["pitched", "programs"]);
    is_found(Fault::SkipsMemoryOfOthers, &["makers"]);
    is_found(Fault::ClaimsToPrefetch, &["unsupported"]);
}

#[test]
fn faults_in_order_are_found() {
    is_found(Fault::DropsWaits, &["held-fences", "other-backends", "host-points"]);
    is_found(Fault::DropsWaitsOfAliases, &["aliases"]);
    is_found(Fault::ForgetsSignals, &["host-points"]);
    is_found(Fault::CompletesFencesEarly, &["held-fences"]);
}

#[test]
fn faults_in_recordings_are_found() {
    is_found(Fault::ForgetsTheLastRecorded, &["recordings"]);
    is_found(Fault::RecordsByDoing, &["recordings"]);
    is_found(Fault::HidesAUse, &["recordings"]);
}

#[test]
fn faults_in_completion_are_found() {
    is_found(Fault::WaitsReturnEarly, &["held-fences"]);
    is_found(Fault::NeverPollsTrue, &["fences"]);
    is_found(Fault::NeverWakes, &["wakers", "thousand"]);
    is_found(Fault::WakesEarly, &["wakers"]);
    is_found(Fault::WakesTwice, &["wakers"]);
    is_found(Fault::GivesDurationsTwice, &["durations"]);
    is_found(Fault::MeasuresEverySecond, &["durations"]);
}

#[test]
fn faults_in_counting_are_found() {
    is_found(Fault::LeaksAllocations, &["dropped"]);
    is_found(Fault::LeaksLeases, &["leases"]);
    is_found(Fault::SwapsPriorities, &["leases"]);
}

#[test]
fn faults_in_answers_are_found() {
    is_found(Fault::AllocatesZeroBytes, &["zero-bytes"]);
    is_found(Fault::ListsPinnedMemory, &["kinds"]);
    is_found(Fault::IgnoresItsLimit, &["one-pebibyte"]);
    is_found(Fault::ServesUnknownDevices, &["unknown-device"]);
    is_found(Fault::NamesNoNumbers, &["one-pebibyte"]);
    is_found(Fault::HasCostsForNothing, &["costs"]);
    is_found(Fault::CopiesFromNowhere, &["copier"]);
}

#[test]
fn panic_fails_only_its_check() {
    let outcome = run(Faulty::around(cpu(2, 4 << 20), Fault::Panics), 5, Duration::from_secs(1));
    let panicked = outcome.failures().find(|failure| failure.check == "fills").unwrap();
    assert!(panicked.to_string().contains("planted"), "{panicked}");
}
