//! The limit on staging buffers, and whose threads move chunks.

use std::{sync::mpsc, time::Duration};

use transload_core::{
    CostModel, ErrorKind, MemoryKind, PathCost, RejectReason, Timing, TransferMethod, TransferPath,
};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::stage,
    watchdog::within,
};

const MIB: usize = 1 << 20;

#[test]
fn staging_limit_bounds_the_ring_of_each_device() {
    within("transfers through a bounded ring", || {
        for (limit, buffers) in [(0, 1), (11 * MIB as u64, 2)] {
            let manager = CrossBackendTransferManager::builder().staging_limit(limit).build();
            manager.register_backend(Mock::default().build()).unwrap();
            let (src, dst) = pair(&manager, 16 * MIB);
            let others = manager.resource_counts()[0].1.allocations;
            for _ in 0..4 {
                stage(&manager, &src, &dst).wait().unwrap();
                stage(&manager, &dst, &src).wait().unwrap();
            }
            assert!(bytes(&dst) == vec![1; 16 * MIB]);
            let made = manager.resource_counts()[0].1.allocations - others;
            assert!((1..=buffers).contains(&made), "{made} buffers of at most {buffers}");
            assert_eq!(manager.staging_bytes(), made * 4 * MIB as u64);
            drop((src, dst));
            assert!(is_at_rest(&manager));
            assert_eq!(manager.staging_bytes(), 0);
        }
    });
}

#[test]
fn chunks_are_moved_by_the_given_executor() {
    within("a transfer by an executor of one thread", || {
        let executor = transload_executor::Executor::with_threads(1).unwrap();
        let manager = CrossBackendTransferManager::builder().executor(&executor).build();
        manager.register_backend(Mock::default().build()).unwrap();
        let (src, dst) = pair(&manager, 8 * MIB);
        assert_eq!(executor.live_threads(), 0);
        stage(&manager, &src, &dst).wait().unwrap();
        assert!(executor.live_threads() > 0);
    });
}

#[test]
fn waiting_thread_copies_what_no_worker_has_begun() {
    within("transfers beside a worker that is stuck", || {
        let executor = transload_executor::Executor::with_threads(1).unwrap();
        let manager = CrossBackendTransferManager::builder().executor(&executor).build();
        manager.register_backend(Mock::default().build()).unwrap();
        let (src, dst) = pair(&manager, 8 * MIB);
        // Makes all staging buffers: one that is made later gets its chunk from the thread that makes it, for a worker.
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        let (begun, is_stuck) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let stuck = executor.spawn(async move {
            begun.send(()).unwrap();
            released.recv()
        });
        is_stuck.recv().unwrap();
        for value in [2, 3] {
            set_bytes(&src, value);
            let options = TransferOptions::new().only(TransferMethod::HostStaged).timing(Timing::Measured);
            let report = manager.copy(&src, &dst).options(options).wait().unwrap();
            assert!(report.moving.is_some_and(|moving| moving > Duration::ZERO), "{report:?}");
            assert!(bytes(&dst) == vec![value; 8 * MIB]);
            set_bytes(&src, 0);
            stage(&manager, &dst, &src).wait().unwrap();
            assert!(bytes(&src) == vec![value; 8 * MIB]);
        }
        release.send(()).unwrap();
        pollster::block_on(stuck).unwrap().unwrap();
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

const FOREVER: u64 = u64::MAX;

#[test]
fn transfer_without_pinned_memory_uses_next_method() {
    within("transfers with and without pinned memory", || {
        let backend = Mock::default().build();
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(backend.clone()).unwrap();
        let (src, dst) = pair(&manager, MIB);
        let path = TransferPath::new(src.place(), dst.place());
        let cost = |method, rate| PathCost { path, method, model: CostModel::linear(Duration::ZERO, rate) };
        manager.set_costs(vec![cost(TransferMethod::HostStaged, 1e9), cost(TransferMethod::DirectCopy, 1e6)]);
        let method = || manager.copy(&src, &dst).wait().unwrap();
        backend.fail_pinned(0, FOREVER, 1);
        for _ in 0..20 {
            let report = method();
            assert_eq!(report.method, TransferMethod::DirectCopy);
            let why = report.rejected.iter().find(|rejected| rejected.method == TransferMethod::HostStaged);
            assert_eq!(why.unwrap().reason, RejectReason::NoStagingMemory);
        }
        // Not every transfer tries.
        assert!(FOREVER - backend.pinned_to_fail() < 10);
        assert_eq!(bytes(&dst), vec![1; MIB]);
        backend.fail_pinned(0, 0, 0);
        // At once if no other method is left, else soon.
        stage(&manager, &src, &dst).wait().unwrap();
        assert_eq!(method().method, TransferMethod::HostStaged);
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn prepare_allocates_what_the_first_transfer_uses() {
    within("a transfer of a prepared path", || {
        for limit in [12 * MIB as u64, 4 * MIB as u64] {
            let backend = Mock::default().build();
            let manager = CrossBackendTransferManager::builder().staging_limit(limit).build();
            manager.register_backend(backend.clone()).unwrap();
            let (src, dst) = pair(&manager, 30 * MIB);
            manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
            let prepared = manager.staging_bytes();
            assert!((4 * MIB as u64..=limit).contains(&prepared));
            backend.fail_pinned(0, FOREVER, 1);
            stage(&manager, &src, &dst).wait().unwrap();
            assert_eq!((manager.staging_bytes(), backend.pinned_to_fail()), (prepared, FOREVER));
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

#[test]
fn prepare_without_pinned_memory_leaves_the_other_methods() {
    let backend = Mock::default().build();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(backend.clone()).unwrap();
    let (src, dst) = pair(&manager, MIB);
    backend.fail_pinned(0, FOREVER, 1);
    manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
    assert_eq!(manager.staging_bytes(), 0);
    manager.copy(&src, &dst).wait().unwrap();
}

#[test]
fn staging_memory_of_callers_counts_within_the_limit() {
    within("a ring that shares its limit", || {
        let manager = CrossBackendTransferManager::builder().staging_limit(16 * MIB as u64).build();
        manager.register_backend(Mock::default().build()).unwrap();
        let (src, dst) = pair(&manager, 5 * MIB);
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        let allocate = |bytes| manager.allocate_staging(MOCK, MemoryKind::Pinned, bytes);
        // One buffer is left to the ring, whose other free ones give way.
        let mine = allocate(12 * MIB).unwrap();
        assert_eq!(manager.staging_bytes(), 16 * MIB as u64);
        let error = allocate(1).unwrap_err();
        assert_eq!((error.kind(), error.memory_shortage().unwrap().free), (ErrorKind::OutOfMemory, Some(0)));
        for _ in 0..2 {
            stage(&manager, &src, &dst).wait().unwrap();
            assert_eq!(manager.staging_bytes(), 16 * MIB as u64);
        }
        drop(manager.allocate_staging(MOCK, MemoryKind::Pageable, MIB).unwrap());
        drop(mine);
        assert_eq!(manager.staging_bytes(), 4 * MIB as u64);
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}
