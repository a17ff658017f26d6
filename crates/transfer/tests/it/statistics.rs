//! Statistics are exact, per path, method and size class.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use transload_core::{ErrorKind, MemoryKind, SizeClass, Timing, TransferMethod, TransferPath};
use transload_transfer::{Sampling, TransferOptions};

use crate::{DeviceId, Mock, pair, sampled, with};

#[test]
fn size_classes_count_separately() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 1 << 20);
    let of = |size| manager.transfer_buffer(&src, &dst, 0, 0, size);
    for size in [1, 4096, 4097, 65536, 65537, 1 << 20] {
        of(size).wait().unwrap();
    }
    backend.fail_next(ErrorKind::Device);
    of(5000).wait().unwrap_err();
    drop(of(6000));
    drop(of(7000));
    manager.drain().unwrap();
    of(0).wait().unwrap_err();

    let path = TransferPath::new(src.place(), dst.place());
    let rows: Vec<_> = manager
        .get_transfer_stats()
        .iter()
        .map(|row| {
            assert_eq!((row.path, row.method), (path, TransferMethod::DirectCopy));
            (row.size_class, row.transfers, row.bytes, row.failures, row.abandoned)
        })
        .collect();
    assert_eq!(
        rows,
        [
            (SizeClass::UpTo4KiB, 2, 4097, 0, 0),
            (SizeClass::UpTo64KiB, 4, 69633 + 6000 + 7000, 1, 2),
            (SizeClass::UpTo1MiB, 2, 65537 + (1 << 20), 0, 0),
        ]
    );
    assert_eq!(manager.refused(), 1);
}

#[test]
fn paths_count_separately_and_are_sorted() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pinned, 64).unwrap();
    for (from, to) in [(&dst, &host), (&src, &dst), (&src, &host)] {
        manager.copy(from, to).wait().unwrap();
    }
    let stats = manager.get_transfer_stats();
    assert_eq!(stats.len(), 3);
    assert!(stats.is_sorted_by_key(|stats| (stats.path, stats.method, stats.size_class)));
    let path = TransferPath::new(src.place(), dst.place());
    assert_eq!(manager.stats_for(path, SizeClass::UpTo4KiB).len(), 1);
    assert!(manager.stats_for(path, SizeClass::Larger).is_empty());
}

#[test]
fn default_sampling_measures_first_and_every_64th() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 1000);
    let mut measured = Vec::new();
    for number in 1..=130 {
        if manager.copy(&src, &dst).wait().unwrap().moving.is_some() {
            measured.push(number);
        }
    }
    assert_eq!(measured, [1, 65, 129]);
    let stats = &manager.get_transfer_stats()[0];
    assert_eq!((stats.transfers, stats.measured, stats.measured_bytes), (130, 3, 3000));
    // The mock's transfers take 10 µs by its clock; those that were not measured add no time.
    assert_eq!(stats.time, Duration::from_micros(30));
    assert_eq!(stats.average_rate(), Some(3000.0 / 30e-6));
    assert!((stats.best_rate.unwrap() - 1e8).abs() < 1.0);
    assert_eq!(stats.sampling, Sampling::Every(64));
    assert!(stats.to_string().contains("3 measured (1 in 64 measured)"), "{stats}");
    assert!(stats.to_string().contains("0.10 GB/s on average"), "{stats}");
    assert!(stats.latency_p50 <= stats.latency_p90 && stats.latency_p90 <= stats.latency_p99);
    assert!(stats.latency_p99 <= stats.latency_max && stats.latency_p50 > Some(Duration::ZERO));
}

#[test]
fn transfer_options_override_sampling() {
    for (sampling, usual) in [(Sampling::Every(1), true), (Sampling::Off, false), (Sampling::Every(0), false)]
    {
        let (manager, _) = sampled(sampling);
        assert_eq!(manager.sampling(), sampling);
        let (src, dst) = pair(&manager, 64);
        let measured = |timing| {
            let options = TransferOptions::new().timing(timing);
            manager.copy(&src, &dst).options(options).wait().unwrap().moving.is_some()
        };
        for _ in 0..5 {
            assert_eq!(manager.copy(&src, &dst).wait().unwrap().moving.is_some(), usual);
        }
        assert!(measured(Timing::Measured) && !measured(Timing::Off));
    }
}

#[test]
fn stats_without_measurements_have_no_rate() {
    let (manager, _) = sampled(Sampling::Off);
    let (src, dst) = pair(&manager, 64);
    manager.copy(&src, &dst).wait().unwrap();
    let stats = &manager.get_transfer_stats()[0];
    assert_eq!((stats.average_rate(), stats.best_rate, stats.time), (None, None, Duration::ZERO));
    assert!(!stats.to_string().contains("GB/s"), "{stats}");
}

#[test]
fn software_driver_transfers_are_simulated() {
    let (manager, _) = with(Mock { simulated: true, ..Mock::default() });
    let (src, dst) = pair(&manager, 64);
    manager.copy(&src, &dst).wait().unwrap();
    assert!(manager.get_transfer_stats()[0].to_string().contains("simulated"));
}

#[test]
fn clear_keeps_counting_transfers_in_flight() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    manager.copy(&src, &dst).wait().unwrap();
    manager.transfer_buffer(&src, &dst, 0, 0, 0).wait().unwrap_err();
    let flying = manager.copy(&src, &dst).submit();
    manager.clear_cache();
    assert!(manager.get_transfer_stats().is_empty() && manager.refused() == 0);
    flying.wait().unwrap();
    manager.copy(&src, &dst).wait().unwrap();
    let stats = &manager.get_transfer_stats()[0];
    assert_eq!((stats.transfers, stats.measured), (2, 1));
}

#[test]
fn cleared_routes_are_found_anew_and_statistics_stay() {
    static QUERIES: AtomicUsize = AtomicUsize::new(0);
    let copies: fn(_, _) -> bool = |_, _| QUERIES.fetch_add(1, Ordering::Relaxed) < usize::MAX;
    let (manager, _) = with(Mock { copies, ..Mock::default() });
    let (src, dst) = pair(&manager, 64);
    let queries = || {
        manager.copy(&src, &dst).wait().unwrap();
        QUERIES.load(Ordering::Relaxed)
    };
    let first = queries();
    assert_eq!(queries(), first, "the route is cached");
    manager.transfer_buffer(&src, &dst, 0, 0, 0).wait().unwrap_err();
    manager.clear_routes();
    assert!(queries() > first);
    assert_eq!((manager.get_transfer_stats()[0].transfers, manager.refused()), (3, 1));
}

#[test]
fn unmeasured_transfer_has_no_times() {
    for (sampling, timed) in [(Sampling::Off, false), (Sampling::Every(1), true)] {
        let (manager, _backend) = sampled(sampling);
        let (src, dst) = pair(&manager, 4096);
        let report = manager.copy(&src, &dst).wait().unwrap();
        assert_eq!((report.submitting.is_some(), report.elapsed.is_some()), (timed, timed), "{sampling:?}");
    }
}
