//! What becomes of transfers whose end nobody looks at: they are counted, and `drain` tells the first failure.

use transload_core::{DeviceId, ErrorKind, MemoryKind, SizeClass, Timing, TransferPath};
use transload_transfer::TransferOptions;

use crate::{Mock, gate::Gate, is_at_rest, pair, sampled, staging::stage, watchdog::within, with};

const MIB: usize = 1 << 20;

#[test]
fn a_dropped_staged_transfer_that_fails_on_the_host_is_told_by_drain_once() {
    within("drains after a dropped transfer failed", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 5 * MIB);
        backend.fail_pinned(0, u64::MAX, 1);
        drop(stage(&manager, &src, &dst));
        let error = manager.drain().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        manager.drain().unwrap();
        let path = TransferPath::new(src.place(), dst.place());
        let stats = manager.stats_for(path, SizeClass::UpTo16MiB);
        assert_eq!((stats[0].transfers, stats[0].failures, stats[0].abandoned), (0, 1, 1));
        backend.fail_pinned(0, 0, 0);
        drop(stage(&manager, &src, &dst));
        manager.drain().unwrap();
        let stats = manager.stats_for(path, SizeClass::UpTo16MiB);
        assert_eq!((stats[0].transfers, stats[0].failures, stats[0].abandoned), (1, 1, 2));
        assert_eq!(stats[0].bytes, 5 * MIB as u64);
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn a_dropped_transfer_of_a_queue_counts_as_it_ended_and_its_failure_is_told() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    backend.pass_next();
    backend.fail_next(ErrorKind::Device);
    (0..3).for_each(|_| drop(manager.transfer(&src, &dst)));
    // The mock works when it is drained: nothing is known before.
    let counts = || {
        let stats = &manager.get_transfer_stats()[0];
        (stats.transfers, stats.failures, stats.abandoned, stats.bytes)
    };
    assert_eq!(counts(), (0, 0, 3, 0));
    assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(counts(), (2, 1, 3, 128));
    manager.drain().unwrap();
}

#[test]
fn statistics_and_later_submissions_count_what_ended_unobserved() {
    within("transfers that are dropped behind a gate", || {
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 3000);
        let gate = Gate::before(&src);
        for _ in 0..200 {
            drop(stage(&manager, &src, &dst));
        }
        let count = || manager.get_transfer_stats()[0].transfers;
        assert_eq!(count(), 0);
        gate.open();
        dst.wait_idle().unwrap();
        assert_eq!(count(), 200);
        // Without any look at the statistics: each submission settles more than it adds.
        let gate = Gate::before(&src);
        for _ in 0..200 {
            drop(stage(&manager, &src, &dst));
        }
        gate.open();
        dst.wait_idle().unwrap();
        for _ in 0..100 {
            stage(&manager, &src, &dst).wait().unwrap();
        }
        assert_eq!(count(), 500);
    });
}

#[test]
fn the_time_of_a_dropped_transfer_that_was_measured_counts() {
    let (manager, _) = sampled(transload_transfer::Sampling::Off);
    let (src, dst) = pair(&manager, 64);
    let measured = TransferOptions::new().timing(Timing::Measured);
    drop(manager.transfer_with(&src, &dst, 0, 0, 64, &measured));
    drop(manager.transfer(&src, &dst));
    manager.drain().unwrap();
    let stats = &manager.get_transfer_stats()[0];
    assert_eq!((stats.transfers, stats.measured, stats.measured_bytes), (2, 1, 64));
    assert_eq!(stats.time, std::time::Duration::from_micros(10));
}

#[test]
fn panic_at_the_end_of_a_dropped_transfer_is_its_failure_only() {
    within("drains and statistics of transfers whose backend panics", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let counts = || {
            let stats = &manager.get_transfer_stats()[0];
            (stats.transfers, stats.failures, stats.abandoned)
        };
        // The second of three, where all are waited for.
        (0..3).for_each(|_| drop(manager.transfer(&src, &dst)));
        backend.panic_at_waits(1, 1);
        let error = manager.drain().unwrap_err();
        assert!(error.kind() == ErrorKind::Interrupted && error.to_string().contains("planted"), "{error}");
        manager.drain().unwrap();
        assert_eq!(counts(), (2, 1, 3));
        // Where they are polled, they are kept: a poll that panics says nothing of the end.
        (0..3).for_each(|_| drop(manager.transfer(&src, &dst)));
        backend.panic_at_polls(1, 1);
        assert_eq!(counts(), (2, 1, 6));
        manager.drain().unwrap();
        assert_eq!(counts(), (5, 1, 6));
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn panic_of_a_look_at_dropped_transfers_loses_none_of_them() {
    within("drains, statistics and submissions beside a timeline that panics", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let (next_src, next_dst) = pair(&manager, 64);
        let counts = || {
            let stats = &manager.get_transfer_stats()[0];
            (stats.transfers, stats.failures, stats.abandoned)
        };
        // The second of three, by statistics and then by a submission.
        (0..3).for_each(|_| drop(manager.transfer(&src, &dst)));
        backend.panic_at_looks(1, 1);
        assert_eq!(counts(), (0, 0, 3));
        dst.wait_idle().unwrap();
        backend.panic_at_looks(1, 1);
        manager.transfer(&next_src, &next_dst).wait().unwrap();
        assert_eq!(backend.looks_to_panic(), 0);
        manager.drain().unwrap();
        assert_eq!(counts(), (4, 0, 3));
        drop((src, dst, next_src, next_dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn a_refusal_that_nobody_saw_is_told_by_drain_once() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    drop(manager.transfer_buffer(&src, &dst, 0, 60, 5));
    drop(manager.transfer_buffer(&src, &dst, 0, 0, 0));
    assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::OutOfRange);
    manager.drain().unwrap();
    assert_eq!(manager.refused(), 2);
    // One of the path, at its submission.
    backend.refuse_next(ErrorKind::Device);
    drop(manager.transfer(&src, &dst));
    assert_eq!(manager.drain().unwrap_err().to_string(), "planted refusal");
    // What was seen is not told again.
    assert!(manager.transfer_buffer(&src, &dst, 0, 60, 5).refusal().is_some());
    manager.transfer_buffer(&src, &dst, 0, 60, 5).wait().unwrap_err();
    manager.drain().unwrap();
}

#[test]
fn the_copy_that_shares_a_buffer_is_told_by_drain_where_it_fails() {
    let (manager, backend) = with(Mock { shares: true, ..Mock::default() });
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    backend.fail_next(ErrorKind::Device);
    let shared = manager.share(&host, crate::MOCK).unwrap();
    assert!(shared.copied);
    assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::Device);
    manager.drain().unwrap();
    drop((host, shared));
    assert!(is_at_rest(&manager));
}
