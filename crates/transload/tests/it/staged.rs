//! HostStaged between pageable memory and a device: chosen automatically where it is faster, correct, ordered, through
//! a bounded ring, and complete before memory is released.

use std::time::Duration;

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, Place, StreamPriority, TransferMethod,
    TransferOptions, WorkloadType,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig, CudaDevice},
};
use transload_cuda_sim::harness;

use crate::{
    cuda::{Setup, noise},
    gate::{Gate, within},
};

const MIB: usize = 1 << 20;

fn staged() -> TransferOptions {
    TransferOptions::new().only(TransferMethod::HostStaged)
}

#[test]
fn automatic_choice_stages_large_pageable_memory_in_chunks() {
    let setup = Setup::new();
    let content = noise(24 * MIB + 5, 1);
    let (source, there) =
        (setup.filled(MemoryKind::Pageable, &content), setup.allocate(MemoryKind::Device, content.len()));
    let back = setup.allocate(MemoryKind::Pageable, content.len());
    let trace = transload_cuda_sys::trace::start();
    let up = setup.manager.copy(&source, &there).wait().unwrap();
    let down = setup.manager.copy(&there, &back).wait().unwrap();
    assert_eq!((up.method, down.method), (TransferMethod::HostStaged, TransferMethod::HostStaged));
    assert!(up.chunks > 1 && down.chunks > 1, "{up:?} {down:?}");
    let (begin, end) =
        (there.device_address().unwrap(), there.device_address().unwrap() + there.len() as u64);
    let mine = |name: &str, at: usize| -> (u64, u64) {
        let calls = trace.calls();
        let ours =
            calls.iter().filter(|call| call.name == name && (begin..end).contains(&call.arguments[at]));
        ours.fold((0, 0), |(count, bytes), call| (count + 1, bytes + call.arguments[2]))
    };
    let (calls, bytes) = mine("cuMemcpyHtoDAsync_v2", 0);
    assert_eq!(bytes, content.len() as u64);
    let most = content.len().div_ceil(MIB) as u64;
    assert!((u64::from(up.chunks)..=most).contains(&calls), "{calls} pinned copies, {up:?}");
    // A download of this length is copied in parts too.
    let (calls, bytes) = mine("cuMemcpyDtoHAsync_v2", 1);
    assert_eq!(bytes, content.len() as u64);
    let most = content.len().div_ceil(MIB / 2) as u64;
    assert!((u64::from(down.chunks)..=most).contains(&calls), "{calls} pinned copies, {down:?}");
    drop(trace);
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn small_pageable_and_all_pinned_memory_is_not_staged() {
    let setup = Setup::new();
    let there = setup.allocate(MemoryKind::Device, 32 * MIB);
    for (kind, size) in [(MemoryKind::Pageable, 4096), (MemoryKind::Pinned, 32 * MIB)] {
        let plan = setup.manager.plan(
            Place::new(transload::DeviceId::Cpu, kind),
            there.place(),
            size as u64,
            &TransferOptions::new(),
        );
        assert_eq!(plan.unwrap().method, TransferMethod::DirectCopy);
    }
    let pinned = setup.filled(MemoryKind::Pinned, &[1; 100]);
    let refused =
        setup.manager.copy(&pinned, &there.slice(..100).unwrap()).options(staged()).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("not pageable"), "{refused}");
}

#[test]
fn odd_sizes_and_offsets_arrive_and_touch_nothing_else() {
    let setup = Setup::new();
    for (seed, size) in [1, 4097, 262_144, 262_145, 5 * MIB + 3].into_iter().enumerate() {
        let content = noise(size + 64, seed as u64);
        let source = setup.filled(MemoryKind::Pageable, &content);
        let there = setup.allocate(MemoryKind::Device, size + 64);
        let back = setup.filled(MemoryKind::Pageable, &vec![0xEE; size + 64]);
        let up = setup
            .manager
            .copy(&source.slice(13..13 + size).unwrap(), &there.slice(7..7 + size).unwrap())
            .options(staged())
            .submit();
        let down = setup
            .manager
            .copy(&there.slice(7..7 + size).unwrap(), &back.slice(29..29 + size).unwrap())
            .options(staged())
            .submit();
        down.wait().unwrap();
        up.wait().unwrap();
        let seen = back.read().unwrap();
        assert!(seen[29..29 + size] == content[13..13 + size], "{size} bytes");
        assert!(seen[..29].iter().chain(&seen[29 + size..]).all(|byte| *byte == 0xEE), "{size} bytes");
    }
}

/// In eight chunks, one for a thread: one driver call for each.
#[test]
fn memory_that_was_never_touched_gets_all_bytes_and_no_others_by_chunks() {
    let setup = Setup::new();
    // None is used again.
    let mut kept = Vec::new();
    for (seed, (size, chunks)) in
        [(70_000, None), (3 * MIB + 5, None), (11 * MIB + 3, Some(8)), (37 * MIB + 3, Some(19))]
            .into_iter()
            .enumerate()
    {
        let content = noise(size, seed as u64);
        let there = setup.allocate(MemoryKind::Device, size);
        setup.manager.copy(&setup.filled(MemoryKind::Pinned, &content), &there).wait().unwrap();
        let begin = there.device_address().unwrap();
        for start in [0, 4096, MIB + 29] {
            let back = setup.allocate(MemoryKind::Pageable, size + 2 * MIB);
            let part = back.slice(start..start + size).unwrap();
            let trace = transload_cuda_sys::trace::start();
            setup.manager.copy(&there, &part).options(staged()).wait().unwrap();
            let is_mine = |address: u64| (begin..begin + size as u64).contains(&address);
            let calls = trace
                .calls()
                .into_iter()
                .filter(|call| call.name == "cuMemcpyDtoHAsync_v2" && is_mine(call.arguments[1]));
            let calls = calls.count();
            drop(trace);
            assert!(chunks.is_none_or(|chunks| calls == chunks), "{calls} calls");
            assert!(*part.read().unwrap() == content[..], "{size} bytes at {start}");
            let seen = back.read().unwrap();
            assert!(seen[..start].iter().chain(&seen[start + size..]).all(|byte| *byte == 0), "{size} bytes");
            drop(seen);
            kept.push(back);
        }
    }
}

#[test]
fn staged_and_direct_transfers_keep_submission_order() {
    let setup = Setup::new();
    let there = setup.allocate(MemoryKind::Device, 3 * MIB);
    let back = setup.allocate(MemoryKind::Pageable, 3 * MIB);
    for round in 0..10 {
        let contents = [noise(3 * MIB, round * 2), noise(3 * MIB, round * 2 + 1)];
        let first = setup.filled(MemoryKind::Pageable, &contents[0]);
        let second = setup.filled(MemoryKind::Pinned, &contents[1]);
        let (one, two) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let earlier = setup.manager.copy(one, &there).submit();
        let later = setup.manager.copy(two, &there).submit();
        setup.manager.copy(&there, &back).wait().unwrap();
        let expected = &contents[if round % 2 == 0 { 1 } else { 0 }];
        assert!(*back.read().unwrap() == expected[..], "round {round}");
        earlier.wait().unwrap();
        later.wait().unwrap();
    }
}

#[test]
fn source_view_conflicts_until_dropped_transfer_completes() {
    let setup = Setup::new();
    let content = noise(9 * MIB, 3);
    let source = setup.filled(MemoryKind::Pageable, &content);
    let (there, back) =
        (setup.allocate(MemoryKind::Device, 9 * MIB), setup.allocate(MemoryKind::Pageable, 9 * MIB));
    drop(setup.manager.copy(&source, &there).options(staged()).submit());
    source.write().unwrap().fill(0);
    drop(setup.manager.copy(&there, &back).options(staged()).submit());
    drop((source, there));
    assert!(
        *back.read().unwrap() == content[..],
        "the write waited for the staged read, the read for the staged write"
    );
    drop(back);
}

#[test]
fn many_staged_transfers_from_many_threads_are_awaited_together() {
    let setup = Setup::new();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let setup = &setup;
            scope.spawn(move || {
                let content = noise(2 * MIB + thread as usize, thread);
                let source = setup.filled(MemoryKind::Pageable, &content);
                let places: Vec<_> =
                    (0..3).map(|_| setup.allocate(MemoryKind::Device, content.len())).collect();
                pollster::block_on(async {
                    let ups: Vec<_> = places
                        .iter()
                        .map(|there| setup.manager.copy(&source, there).options(staged()).submit())
                        .collect();
                    for up in ups {
                        up.await.unwrap();
                    }
                });
                let back = setup.allocate(MemoryKind::Pageable, content.len());
                setup.manager.copy(&places[2], &back).options(staged()).wait().unwrap();
                assert!(*back.read().unwrap() == content[..]);
            });
        }
    });
}

#[test]
fn staged_transfers_progress_while_user_streams_block() {
    within(Duration::from_secs(60), || {
        let test = harness::device();
        let _end = test.end_check();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]).with_streams_per_priority(1);
        let backend = CudaBackend::open(&config).unwrap();
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        manager.register_backend(backend.clone()).unwrap();
        let pageable = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 3 * MIB).unwrap();
        let (source, back) = (pageable(), pageable());
        let there = manager.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Device, 3 * MIB).unwrap();
        let content = noise(3 * MIB, 11);
        let there_and_back = || {
            drop(manager.copy(&source, &there).options(staged()).submit());
            manager.copy(&there, &back).options(staged()).wait().unwrap();
        };
        // Creates streams and staging buffers first: not every driver creates them behind a gate.
        there_and_back();
        source.write().unwrap().copy_from_slice(&content);
        let pool = backend.streams(test.ordinal()).unwrap();
        let workloads = [WorkloadType::Memory, WorkloadType::Compute];
        let leases = workloads.map(|workload| pool.lease(StreamPriority::Normal, workload).unwrap());
        let gate = Gate::closed(&CudaDevice::new(test.ordinal()).unwrap());
        leases.iter().for_each(|lease| gate.hold([&**lease]));
        there_and_back();
        assert!(*back.read().unwrap() == content[..]);
        gate.open();
        drop((leases, source, back, there));
        manager.drain().unwrap();
    });
}
