//! Reports of transfers, also while threads submit without a pause.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, MemoryKind};
use transload_transfer::CrossBackendTransferManager;

use crate::timing_all;

/// Copies that the submitting thread makes come faster than the profiler takes them.
#[test]
fn report_ends_while_threads_go_on_submitting() {
    const LONGEST: Duration = Duration::from_secs(60);
    let profiler = timing_all();
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    profiler.attach(&manager.backend(DeviceId::Cpu).unwrap()).unwrap();
    profiler.enable().unwrap();
    let (is_over, begun, copies) = (AtomicBool::new(false), Instant::now(), AtomicU64::new(0));
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                let buffer = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
                let (src, dst) = (buffer(), buffer());
                while !is_over.load(Ordering::Relaxed) && begun.elapsed() < LONGEST {
                    manager.copy(&src, &dst).wait().unwrap();
                    copies.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        // More than are kept of those that no operation has ended.
        while copies.load(Ordering::Relaxed) < 6000 {
            thread::yield_now();
        }
        for _ in 0..3 {
            drop(profiler.get_comprehensive_report());
        }
        let were_running = threads.iter().all(|thread| !thread.is_finished());
        is_over.store(true, Ordering::Relaxed);
        assert!(were_running && begun.elapsed() < LONGEST, "no report ended before all copies had");
    });
    let report = profiler.get_comprehensive_report();
    let [path] = &report.paths[..] else { panic!("{report}") };
    assert!(path.elapsed.count > 0, "{report}");
}

#[test]
fn transfers_of_a_path_are_reported_by_class_of_size() {
    let profiler = timing_all();
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    profiler.attach(&manager.backend(DeviceId::Cpu).unwrap()).unwrap();
    profiler.enable().unwrap();
    for bytes in [4 << 10, 16 << 20, 4 << 10] {
        let buffer = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
        manager.copy(&buffer(), &buffer()).wait().unwrap();
    }
    let report = profiler.get_comprehensive_report();
    let mut found: Vec<_> = report.paths.iter().map(|path| (path.sampled, path.sampled_bytes)).collect();
    found.sort_unstable();
    assert_eq!(found, [(1, 16 << 20), (2, 8 << 10)], "{report}");
}
