//! Transfers on the real CPU backend, alone and with another backend.

use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer};
use transload_transfer::{CrossBackendTransferManager, Sampling};

use crate::{MOCK, beside_cpu, is_at_rest, mock::bytes};

fn manager() -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::builder().sampling(Sampling::Every(1)).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager
}

fn host(manager: &CrossBackendTransferManager, bytes: usize, seed: u8) -> RawBuffer {
    let buffer = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    for (at, byte) in buffer.write().unwrap().iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed);
    }
    buffer
}

#[test]
fn odd_sizes_arrive_and_are_measured() {
    let manager = manager();
    for size in [1, 4095, 65537, (3 << 20) + 1, 9 << 20] {
        let (src, dst) = (host(&manager, size + 13, 1), host(&manager, size + 29, 2));
        let before = dst.read().unwrap().to_vec();
        let report = pollster::block_on(manager.transfer_buffer(&src, &dst, 13, 7, size)).unwrap();
        assert!(report.moving.is_some() && report.bytes == size as u64 && !report.simulated);
        let after = dst.read().unwrap();
        assert!(after[7..][..size] == src.read().unwrap()[13..], "{size}");
        assert!(after[..7] == before[..7] && after[7 + size..] == before[7 + size..], "{size}");
    }
    assert!(is_at_rest(&manager));
}

#[test]
fn reversed_awaits_and_drops_keep_order() {
    let manager = manager();
    let size = 2 << 20;
    let dst = host(&manager, size, 0);
    let sources: Vec<_> = (1..=6).map(|seed| host(&manager, size, seed)).collect();
    let mut transfers: Vec<_> = sources.iter().map(|src| manager.copy(src, &dst).submit()).collect();
    drop(transfers.remove(2));
    for transfer in transfers.into_iter().rev() {
        pollster::block_on(transfer).unwrap();
    }
    assert!(*dst.read().unwrap() == *sources[5].read().unwrap());
    drop((dst, sources));
    assert!(is_at_rest(&manager));
}

#[test]
fn buffer_dropped_in_flight_is_pending_free_until_complete() {
    let manager = manager();
    let src = host(&manager, 32 << 20, 3);
    let expected = src.read().unwrap().to_vec();
    let dst = host(&manager, 32 << 20, 4);
    drop(manager.copy(&src, &dst).submit());
    drop(src);
    assert!(*dst.read().unwrap() == *expected);
    drop(dst);
    assert!(is_at_rest(&manager));
}

#[test]
fn eight_threads_move_bytes_through_one_manager() {
    let manager = manager();
    let dst = host(&manager, 8 * 70_000, 0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (manager, dst) = (&manager, &dst);
            scope.spawn(move || {
                for round in 0..50 {
                    let src = host(manager, 70_000, thread * 7 + round);
                    let at = 70_000 * usize::from(thread);
                    manager.transfer_buffer(&src, dst, 0, at, 70_000).wait().unwrap();
                    let arrived = dst.slice(at..at + 70_000).unwrap();
                    assert!(*arrived.read().unwrap() == *src.read().unwrap());
                }
            });
        }
    });
    let stats = manager.get_transfer_stats();
    assert_eq!((stats.len(), stats[0].transfers, stats[0].measured), (1, 400, 400));
    drop(dst);
    assert!(is_at_rest(&manager));
}

#[test]
fn a_chain_across_two_backends_needs_no_wait_between() {
    let (manager, _) = beside_cpu();
    for _ in 0..50 {
        let (src, back) = (host(&manager, 100_000, 5), host(&manager, 100_000, 6));
        let there = manager.allocate(MOCK, MemoryKind::Device, 100_000).unwrap();
        let last = host(&manager, 100_000, 7);
        let transfers = [
            manager.copy(&src, &there).submit(),
            manager.copy(&there, &back).submit(),
            manager.copy(&back, &last).submit(),
        ];
        transfers.into_iter().rev().for_each(|transfer| drop(transfer.wait().unwrap()));
        assert!(*last.read().unwrap() == *src.read().unwrap());
    }
    assert!(is_at_rest(&manager));
}

#[test]
fn a_device_lost_beside_the_host_leaves_the_host_usable() {
    let (manager, backend) = beside_cpu();
    let (src, dst) = (host(&manager, 1000, 1), host(&manager, 1000, 2));
    let there = manager.allocate(MOCK, MemoryKind::Device, 1000).unwrap();
    backend.fail_next(ErrorKind::DeviceLost);
    assert_eq!(manager.copy(&src, &there).wait().unwrap_err().kind(), ErrorKind::DeviceLost);
    assert!(manager.copy(&there, &dst).submit().refusal().is_some());
    manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(bytes(&there), [0; 1000]);
    assert!(*dst.read().unwrap() == *src.read().unwrap());
}
