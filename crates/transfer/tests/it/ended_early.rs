//! Staged transfers interrupted by a panic of the backend: they fail, they end for all waiters, and memory that a copy
//! uses is not freed.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
};

use transload_core::{
    DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result, TransferMethod, TransferReport,
};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, MockBackend,
    gate::Gate,
    is_at_rest,
    mock::bytes,
    pair,
    staging::{OTHER, filled, most_buffers, stage, two_devices},
    watchdog::within,
    with,
};

const MIB: usize = 1 << 20;
const FOREVER: u64 = u64::MAX;

fn failure(outcome: Result<TransferReport>) -> Error {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    error
}

/// A copy into a staging buffer in flight, and a task interrupted before it enqueued the copy out of it.
fn half_across(manager: &CrossBackendTransferManager, backend: &MockBackend) -> (RawBuffer, RawBuffer) {
    let src = filled(manager, MOCK, MemoryKind::Device, 1000, 1);
    let dst = filled(manager, OTHER, MemoryKind::Device, 1000, 0);
    backend.panic_at_enqueues(1, 1);
    (src, dst)
}

#[test]
fn staging_memory_outlives_copies_of_interrupted_task() {
    within("a transfer of which half a chunk is in flight", || {
        let (manager, backend) = two_devices();
        let (src, dst) = half_across(&manager, &backend);
        // A thread that blocks for the copy is interrupted too: it must not be the only owner of the memory.
        backend.panic_at_waits(0, 1);
        {
            let mut transfer = pin!(stage(&manager, &src, &dst));
            let error = loop {
                assert_eq!(backend.freed_in_use(), 0, "staging memory was freed under its copy");
                let polled = transfer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let std::task::Poll::Ready(outcome) = polled {
                    break failure(outcome);
                }
                thread::yield_now();
            };
            assert!(error.to_string().contains("ended early"), "{error}");
        }
        backend.panic_at_waits(0, 0);
        stage(&manager, &src, &dst).wait().unwrap();
        assert_eq!(bytes(&dst), vec![1; 1000]);
        drop((src, dst));
        assert!(is_at_rest(&manager));
        assert_eq!(backend.freed_in_use(), 0);
    });
}

#[test]
fn staging_memory_outlives_copy_when_other_device_lost() {
    within("a chunk between a device that stands still and one that is lost", || {
        let (manager, backend) = two_devices();
        let src = filled(&manager, MOCK, MemoryKind::Device, 1000, 1);
        let dst = filled(&manager, OTHER, MemoryKind::Device, 1000, 0);
        let gate = Gate::new();
        backend.close_downloads(gate.fence());
        backend.lose(OTHER);
        // The first look is that of the task which waits for both copies.
        backend.panic_at_looks(0, 1);
        let transfer = stage(&manager, &src, &dst);
        // The staging buffer is parked, or went.
        while manager.resource_counts()[0].1.pending_free == 0 && backend.freed_in_use() == 0 {
            thread::yield_now();
        }
        assert_eq!((backend.enqueued(), backend.freed_in_use()), (2, 0));
        gate.open();
        failure(transfer.wait());
        drop((src, dst));
        // It returns the loss.
        manager.drain().ok();
        assert!(is_at_rest(&manager));
        assert_eq!(backend.freed_in_use(), 0);
    });
}

#[test]
fn interrupted_transfer_ends_for_all_waiters() {
    within("waits for transfers that ended early", || {
        let (manager, backend) = two_devices();
        for round in 0..40 {
            let (src, dst) = half_across(&manager, &backend);
            let transfer = stage(&manager, &src, &dst);
            match round % 4 {
                0 => drop(failure(transfer.wait())),
                1 => drop(failure(pollster::block_on(transfer))),
                2 => {
                    drop(transfer);
                    failure(manager.drain().map(|()| unreachable!("the failure is told")));
                }
                _ => {
                    // One behind it: the source of its bytes failed.
                    let back = filled(&manager, MOCK, MemoryKind::Device, 1000, 0);
                    let outcome = stage(&manager, &dst, &back).wait();
                    failure(transfer.wait());
                    // It takes the panic where it is enqueued first.
                    assert!(outcome.is_err_and(|error| error.kind() == ErrorKind::SourceFailed));
                }
            }
            // Both buffers are usable again.
            stage(&manager, &src, &dst).wait().unwrap();
            assert_eq!(bytes(&dst), vec![1; 1000]);
        }
        assert!(is_at_rest(&manager));
        assert_eq!(backend.freed_in_use(), 0);
    });
}

#[test]
fn transfer_without_tasks_leaves_ring() {
    within("transfers of which every chunk panics", || {
        let (manager, backend) = two_devices();
        // More chunks than there are staging buffers.
        let bytes = most_buffers() * 5 * MIB;
        let host = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, bytes, 1);
        let there = filled(&manager, MOCK, MemoryKind::Device, bytes, 2);
        let across = filled(&manager, OTHER, MemoryKind::Device, bytes, 3);
        for (src, dst) in [(&host, &there), (&there, &host), (&there, &across)] {
            backend.panic_at_enqueues(0, FOREVER);
            failure(pollster::block_on(stage(&manager, src, dst)));
            failure(stage(&manager, src, dst).wait());
            backend.panic_at_enqueues(0, 0);
            stage(&manager, src, dst).wait().unwrap();
        }
        drop((host, there, across));
        assert!(is_at_rest(&manager));
        assert_eq!(backend.freed_in_use(), 0);
    });
}

#[test]
fn interrupted_transfer_releases_its_dependencies() {
    within("transfers that panic, one behind the other", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        let gate = Gate::before(&src);
        backend.panic_at_enqueues(0, FOREVER);
        let transfers: Vec<_> = (0..3).map(|_| stage(&manager, &src, &dst)).collect();
        let ends: Vec<_> = transfers.iter().map(|transfer| transfer.fence().unwrap().clone()).collect();
        gate.open();
        transfers.into_iter().for_each(|transfer| drop(failure(transfer.wait())));
        drop((src, dst));
        assert!(is_at_rest(&manager));
        assert_eq!((gate.holders(), ends.len()), (1, 3));
    });
}

#[test]
fn panic_of_prefetch_ends_its_transfer() {
    within("transfers whose prefetch panics", || {
        let (manager, backend) = two_devices();
        let host = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, MIB, 1);
        let unified = filled(&manager, MOCK, MemoryKind::Unified, MIB, 2);
        let options = TransferOptions::new().only(TransferMethod::UnifiedMemory);
        for (src, dst) in [(&host, &unified), (&unified, &host)] {
            backend.panic_at_enqueues(0, 1);
            failure(manager.copy(src, dst).options(options).wait());
            manager.copy(src, dst).options(options).wait().unwrap();
            assert_eq!(bytes(dst), vec![1; MIB]);
        }
        drop((host, unified));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn panic_of_next_transfers_copy_fails_only_that_one() {
    within("a transfer that hands its staging buffer to one that panics", || {
        let (manager, backend) = with(Mock::default());
        let (back, there) = pair(&manager, 1000);
        let (next_back, next) = pair(&manager, 1000);
        // There is one staging buffer.
        backend.fail_pinned(1, FOREVER, 1);
        let gate = Gate::new();
        backend.close_downloads(gate.fence());
        let first = stage(&manager, &there, &back);
        while backend.enqueued() == 0 {
            thread::yield_now();
        }
        let second = stage(&manager, &next, &next_back);
        // It is in the ring once a further buffer was tried for.
        while backend.pinned_to_fail() == FOREVER {
            thread::yield_now();
        }
        backend.panic_at_enqueues(0, 1);
        gate.open();
        pollster::block_on(first).unwrap();
        let error = failure(pollster::block_on(second));
        assert!(error.to_string().contains("planted panic"), "{error}");
        backend.fail_pinned(0, 0, 0);
        stage(&manager, &next, &next_back).wait().unwrap();
        drop((back, there, next_back, next));
        let _: Arc<_> = backend;
        assert!(is_at_rest(&manager));
    });
}
