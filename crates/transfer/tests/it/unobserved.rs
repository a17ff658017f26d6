//! Transfers whose end is not observed: they are counted, and `drain` returns the first failure.

use transload_core::{DeviceId, ErrorKind, MemoryKind, SizeClass, Timing, TransferPath};
use transload_transfer::TransferOptions;

use crate::{Mock, gate::Gate, is_at_rest, pair, sampled, staging::stage, watchdog::within, with};

const MIB: usize = 1 << 20;

#[test]
fn drain_returns_dropped_staged_failure_once() {
    within("drains after a dropped transfer failed", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 5 * MIB);
        backend.fail_next(ErrorKind::Device);
        drop(stage(&manager, &src, &dst));
        let error = manager.drain().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        manager.drain().unwrap();
        let path = TransferPath::new(src.place(), dst.place());
        let stats = manager.stats_for(path, SizeClass::UpTo16MiB);
        assert_eq!((stats[0].transfers, stats[0].failures, stats[0].abandoned), (0, 1, 1));
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
fn dropped_transfer_counts_and_drain_returns_failure() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    backend.pass_next();
    backend.fail_next(ErrorKind::Device);
    (0..3).for_each(|_| drop(manager.copy(&src, &dst).submit()));
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
fn stats_and_submissions_count_unobserved_ends() {
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
fn dropped_measured_transfer_counts_its_time() {
    let (manager, _) = sampled(transload_transfer::Sampling::Off);
    let (src, dst) = pair(&manager, 64);
    let measured = TransferOptions::new().timing(Timing::Measured);
    drop(manager.copy(&src, &dst).options(measured).submit());
    drop(manager.copy(&src, &dst).submit());
    manager.drain().unwrap();
    let stats = &manager.get_transfer_stats()[0];
    assert_eq!((stats.transfers, stats.measured, stats.measured_bytes), (2, 1, 64));
    assert_eq!(stats.time, std::time::Duration::from_micros(10));
}

#[test]
fn panic_of_dropped_transfer_fails_only_that_one() {
    within("drains and statistics of transfers whose backend panics", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let counts = || {
            let stats = &manager.get_transfer_stats()[0];
            (stats.transfers, stats.failures, stats.abandoned)
        };
        // The second of three, where all are waited for.
        (0..3).for_each(|_| drop(manager.copy(&src, &dst).submit()));
        backend.panic_at_waits(1, 1);
        let error = manager.drain().unwrap_err();
        assert!(error.kind() == ErrorKind::Interrupted && error.to_string().contains("planted"), "{error}");
        manager.drain().unwrap();
        assert_eq!(counts(), (2, 1, 3));
        // Where they are polled, they are kept: a poll that panics says nothing of the end.
        (0..3).for_each(|_| drop(manager.copy(&src, &dst).submit()));
        backend.panic_at_polls(1, 1);
        assert_eq!(counts(), (2, 1, 6));
        manager.drain().unwrap();
        assert_eq!(counts(), (5, 1, 6));
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn panic_while_checking_loses_no_dropped_transfer() {
    within("drains, statistics and submissions beside a timeline that panics", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let (next_src, next_dst) = pair(&manager, 64);
        let counts = || {
            let stats = &manager.get_transfer_stats()[0];
            (stats.transfers, stats.failures, stats.abandoned)
        };
        // The second of three, by statistics and then by a submission.
        (0..3).for_each(|_| drop(manager.copy(&src, &dst).submit()));
        backend.panic_at_looks(1, 1);
        assert_eq!(counts(), (0, 0, 3));
        dst.wait_idle().unwrap();
        backend.panic_at_looks(1, 1);
        manager.copy(&next_src, &next_dst).wait().unwrap();
        assert_eq!(backend.looks_to_panic(), 0);
        manager.drain().unwrap();
        assert_eq!(counts(), (4, 0, 3));
        drop((src, dst, next_src, next_dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn drain_returns_unobserved_refusal_once() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    drop(manager.transfer_buffer(&src, &dst, 0, 60, 5));
    drop(manager.transfer_buffer(&src, &dst, 0, 0, 0));
    assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::OutOfRange);
    manager.drain().unwrap();
    assert_eq!(manager.refused(), 2);
    // One of the path, at its submission.
    backend.refuse_next(ErrorKind::Device);
    drop(manager.copy(&src, &dst).submit());
    let text = "an earlier failure that no caller was told: planted refusal";
    assert_eq!(manager.drain().unwrap_err().to_string(), text);
    // An observed failure is not returned again.
    assert!(manager.transfer_buffer(&src, &dst, 0, 60, 5).refusal().is_some());
    manager.transfer_buffer(&src, &dst, 0, 60, 5).wait().unwrap_err();
    manager.drain().unwrap();
}

#[test]
fn drain_returns_failure_of_shared_copy() {
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
