//! Bytes arrive, in submission order, however transfers are waited for.

use std::sync::Arc;

use transload_core::{DeviceId, MemoryKind, StreamPriority, WorkloadType};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, is_at_rest,
    mock::{bytes, set_bytes},
    pair, with,
};

#[test]
fn exactly_the_range_is_copied() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 100);
    src.write().unwrap().iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
    let report = manager.transfer_buffer(&src, &dst, 10, 70, 30).wait().unwrap();
    assert_eq!((report.bytes, report.lane, report.lanes, report.chunks), (30, MOCK, 1, 1));
    let mut expected = vec![0; 100];
    expected[70..].copy_from_slice(&(10..40).collect::<Vec<u8>>());
    assert_eq!(bytes(&dst), expected);
}

#[test]
fn offsets_count_from_the_beginning_of_a_slice() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 100);
    let part = dst.slice(50..60).unwrap();
    manager.transfer_buffer(&src, &part, 0, 4, 6).wait().unwrap();
    assert_eq!(bytes(&dst).iter().position(|byte| *byte == 1), Some(54));
    assert_eq!(bytes(&dst).iter().filter(|byte| **byte == 1).count(), 6);
}

#[test]
fn every_pair_of_memories_can_be_transferred() {
    let (manager, _) = with(Mock::default());
    let places = [
        (DeviceId::Cpu, MemoryKind::Pageable),
        (DeviceId::Cpu, MemoryKind::Pinned),
        (DeviceId::Cpu, MemoryKind::Mapped),
        (MOCK, MemoryKind::Device),
        (MOCK, MemoryKind::Unified),
    ];
    for (from, from_kind) in places {
        for (to, to_kind) in places {
            let src = manager.allocate(from, from_kind, 33).unwrap();
            let dst = manager.allocate(to, to_kind, 33).unwrap();
            set_bytes(&src, 9);
            manager.copy(&src, &dst).wait().unwrap();
            assert!(bytes(&dst).iter().all(|byte| *byte == 9), "{} → {}", src.place(), dst.place());
        }
    }
    assert!(is_at_rest(&manager));
}

#[test]
fn two_transfers_can_be_awaited_in_either_order() {
    for reversed in [false, true] {
        let (manager, _) = with(Mock::default());
        let (src, one) = pair(&manager, 64);
        let two = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
        let (first, second) = (manager.copy(&src, &one).submit(), manager.copy(&src, &two).submit());
        assert!(first.fence().is_some() && second.fence().is_some());
        pollster::block_on(async {
            if reversed {
                second.await.unwrap();
                first.await.unwrap();
            } else {
                first.await.unwrap();
                second.await.unwrap();
            }
        });
        assert_eq!((bytes(&one), bytes(&two)), (vec![1; 64], vec![1; 64]));
    }
}

#[test]
fn transfers_into_one_range_keep_submission_order() {
    let (manager, _) = with(Mock::default());
    let dst = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
    let transfers: Vec<_> = (1..=9)
        .map(|value| {
            let (src, _) = pair(&manager, 64);
            set_bytes(&src, value);
            manager.copy(&src, &dst).submit()
        })
        .collect();
    // They are on three queues; the last one is waited for first.
    transfers.into_iter().rev().for_each(|transfer| drop(transfer.wait().unwrap()));
    assert_eq!(bytes(&dst), [9; 64]);
}

#[test]
fn a_chain_of_transfers_needs_no_wait_between() {
    let (manager, _) = with(Mock::default());
    let (src, there) = pair(&manager, 64);
    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pinned, 64).unwrap();
    let first = manager.copy(&src, &there).submit();
    manager.copy(&there, &back).wait().unwrap();
    assert_eq!(bytes(&back), [1; 64]);
    first.wait().unwrap();
}

#[test]
fn dropped_transfer_keeps_memory_and_runs() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    drop(manager.copy(&src, &dst).submit());
    drop(src);
    assert_eq!((backend.performed(), manager.resource_counts()[0].1.pending_free), (0, 1));
    manager.drain().unwrap();
    assert_eq!(bytes(&dst), [1; 64]);
    drop(dst);
    assert!(is_at_rest(&manager));
}

#[test]
fn a_transfer_outlives_its_manager() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let transfer = manager.copy(&src, &dst).submit();
    drop(manager);
    transfer.wait().unwrap();
    assert_eq!(bytes(&dst), [1; 64]);
}

#[test]
fn queue_is_leased_by_priority_and_workload() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let options = TransferOptions::new().priority(StreamPriority::High).workload(WorkloadType::Coordination);
    let urgent = manager.copy(&src, &dst).options(options).submit();
    let usual = manager.copy(&src, &dst).submit();
    assert_eq!(
        backend.leased(),
        [
            (MOCK, StreamPriority::High, WorkloadType::Coordination),
            (MOCK, StreamPriority::Normal, WorkloadType::Memory),
        ]
    );
    assert_eq!(manager.resource_counts()[0].1.leases, 0);
    urgent.wait().and(usual.wait()).unwrap();
}

#[test]
fn eight_threads_share_a_manager() {
    let (manager, backend) = with(Mock::default());
    let manager: &CrossBackendTransferManager = &manager;
    let shared = manager.allocate(MOCK, MemoryKind::Device, 4096).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let shared = &shared;
            scope.spawn(move || {
                let (src, own) = pair(manager, 4096);
                for round in 0..100_u8 {
                    set_bytes(&src, thread.wrapping_mul(31).wrapping_add(round));
                    let own_done = manager.copy(&src, &own).submit();
                    let all = manager.copy(&src, shared).submit();
                    let part = manager.transfer_buffer(&src, shared, 0, 512 * usize::from(thread), 512);
                    all.wait().unwrap();
                    part.wait().unwrap();
                    own_done.wait().unwrap();
                    assert_eq!(bytes(&own), bytes(&src));
                    assert!(manager.plan(src.place(), own.place(), 8, &TransferOptions::new()).is_ok());
                }
            });
        }
    });
    assert_eq!(backend.performed(), 8 * 300);
    let transfers: u64 = manager.get_transfer_stats().iter().map(|stats| stats.transfers).sum();
    assert_eq!((transfers, manager.refused()), (8 * 300, 0));
    drop(shared);
    assert!(is_at_rest(manager));
    let _: Arc<_> = backend;
}
