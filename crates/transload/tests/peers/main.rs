//! The transfer manager with two CUDA peer devices, on the software driver and, with `TRANSLOAD_TEST_DRIVER=real`, on
//! two real ones.
#![cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod lists;
mod setup;

use std::sync::Arc;

use setup::{Setup, noise};
use transload::{
    DeviceId, ErrorKind, StreamPriority, TransferMethod, TransferOptions, WorkloadType,
    backend::{Operation, PeerAccess, Timing, submit},
    cuda::{CudaDevice, CudaMemoryManager},
};
use transload_cuda_sim::harness;
use transload_cuda_sys::trace::{self, Call};

/// Returns `None`, which skips the test, if the machine has one device.
fn two() -> Option<Setup> {
    let devices = harness::devices(2)?;
    Some(Setup::over([devices[0], devices[1]]))
}

fn called<'a>(calls: &'a [Call], name: &str) -> Vec<&'a Call> {
    calls.iter().filter(|call| call.name == name).collect()
}

#[test]
fn exactly_the_bytes_asked_for_arrive_in_both_directions() {
    let Some(setup) = two() else { return };
    for (from, to) in [(0, 1), (1, 0)] {
        for (seed, size) in [1, 3, 4097, 300_001, (2 << 20) + 5].into_iter().enumerate() {
            let content = noise(size + 100, seed as u64);
            let src = setup.filled(from, &content);
            let dst = setup.filled(to, &vec![0xEE; size + 50]);
            let report = setup.manager.transfer_buffer(&src, &dst, 31, 7, size).wait().unwrap();
            assert_eq!((report.method, report.bytes), (TransferMethod::PeerToPeer, size as u64));
            assert_eq!((report.lane, report.chunks), (setup.devices[from], 1));
            assert_eq!(report.simulated, setup.tests[0].is_simulated());
            let seen = setup.content(&dst);
            assert!(seen[7..7 + size] == content[31..31 + size], "{from} → {to}, {size} bytes");
            assert!(seen[..7].iter().chain(&seen[7 + size..]).all(|byte| *byte == 0xEE), "{from} → {to}");
        }
    }
    setup.finish();
}

#[test]
fn adopted_memory_of_two_devices_is_copied_between_them() {
    let Some(setup) = two() else { return };
    let content = noise(300_001, 3);
    let devices = setup.tests.map(|test| CudaDevice::new(test.ordinal()).unwrap());
    let memories = devices.each_ref().map(|device| CudaMemoryManager::new(device).unwrap());
    for (from, to) in [(0, 1), (1, 0)] {
        let theirs = [setup.filled(from, &content), setup.on(to, content.len())];
        let addresses = theirs.each_ref().map(|buffer| buffer.device_address().unwrap());
        let owner = Arc::new(theirs);
        let adopt = |which: usize, address| {
            // SAFETY: the owner keeps the memory, which nothing else uses meanwhile.
            unsafe { memories[which].adopt(address, content.len(), Arc::clone(&owner)) }.unwrap()
        };
        let (src, dst) = (adopt(from, addresses[0]), adopt(to, addresses[1]));
        assert_eq!(setup.manager.copy(&src, &dst).wait().unwrap().method, TransferMethod::PeerToPeer);
        drop((src, dst));
        memories.iter().for_each(|memory| memory.drain().unwrap());
        assert_eq!(Arc::strong_count(&owner), 1);
        assert!(setup.content(&owner[1]) == content, "{from} → {to}");
    }
    drop((memories, devices));
    setup.finish();
}

#[test]
fn automatic_choice_makes_one_peer_copy() {
    let Some(setup) = two() else { return };
    let bytes = (3 << 20) + 11;
    let (src, dst) = (setup.filled(0, &noise(bytes, 1)), setup.on(1, bytes));
    // The first transfers enable and verify access and create streams and events.
    setup.manager.copy(&src, &dst).wait().unwrap();
    setup.manager.copy(&src, &dst).wait().unwrap();
    let trace = trace::start();
    let transfer = setup.manager.copy(&src, &dst).submit();
    let calls = trace.calls_of_this_thread();
    let moved: Vec<_> = calls.iter().filter(|call| call.name.starts_with("cuMem")).collect();
    assert_eq!(moved.len(), 1, "{calls:?}");
    assert_eq!(moved[0].name, "cuMemcpyPeerAsync");
    let [to, to_context, from, from_context, size] = moved[0].arguments[..5] else { panic!("{calls:?}") };
    assert_eq!(
        [to, from, size],
        [dst.device_address().unwrap(), src.device_address().unwrap(), bytes as u64]
    );
    assert_ne!(to_context, from_context);
    let waits = calls.iter().find(|call| call.name.contains("Synchronize"));
    assert!(waits.is_none(), "submission waits for nothing: {calls:?}");
    assert_eq!(transfer.wait().unwrap().method, TransferMethod::PeerToPeer);
}

#[test]
fn peer_access_is_verified_once_without_synchronising() {
    let Some(setup) = two() else { return };
    let (here, there) = (setup.filled(0, &noise(5000, 1)), setup.on(1, 5000));
    let trace = trace::start();
    for _ in 0..20 {
        setup.manager.copy(&here, &there).wait().unwrap();
        setup.manager.copy(&there, &here).wait().unwrap();
    }
    let calls = trace.calls_of_this_thread();
    let mut peers: Vec<u64> =
        called(&calls, "cuCtxEnablePeerAccess").iter().map(|call| call.arguments[0]).collect();
    peers.sort_unstable();
    peers.dedup();
    assert_eq!((peers.len(), called(&calls, "cuCtxEnablePeerAccess").len()), (2, 2), "each way once");
    assert!(called(&calls, "cuMemPoolSetAccess").len() <= 2, "each pool once");
    assert_eq!(called(&calls, "cuMemcpyPeerAsync").len(), 40 + 2, "40 transfers and one pattern each way");
    assert!(called(&calls, "cuCtxSynchronize").is_empty());
    if let [Some(a), Some(b)] = setup.tests.each_ref().map(|test| test.sim()) {
        assert!(a.enabled_peers().contains(&b.ordinal()) && b.enabled_peers().contains(&a.ordinal()));
    }
}

#[test]
fn plan_enables_no_access_and_matches_the_transfer() {
    let Some(setup) = two() else { return };
    let path = setup.path(0, 1);
    let trace = trace::start();
    let plan = setup.manager.plan(path.src, path.dst, 5000, &TransferOptions::new()).unwrap();
    let calls = trace.calls_of_this_thread();
    for name in ["cuCtxEnablePeerAccess", "cuDevicePrimaryCtxRetain", "cuMemcpyPeerAsync"] {
        assert!(called(&calls, name).is_empty(), "{calls:?}");
    }
    let (src, dst) = (setup.filled(0, &noise(5000, 1)), setup.on(1, 5000));
    let report = setup.manager.copy(&src, &dst).wait().unwrap();
    assert!(plan.agrees_with(&report), "{plan}\n{report}");
    assert_eq!(plan.method, TransferMethod::PeerToPeer);
}

#[test]
fn peer_copy_uses_source_device_stream_of_priority() {
    let Some(setup) = two() else { return };
    let (src, dst) = (setup.filled(0, &[1; 100]), setup.on(1, 100));
    setup.manager.copy(&src, &dst).wait().unwrap();
    let stream_of = |priority| {
        let trace = trace::start();
        let options = TransferOptions::new().priority(priority);
        setup.manager.copy(&src, &dst).options(options).wait().unwrap();
        called(&trace.calls_of_this_thread(), "cuMemcpyPeerAsync")[0].arguments[5]
    };
    assert_ne!(stream_of(StreamPriority::High), stream_of(StreamPriority::Low));
}

#[test]
fn work_on_two_devices_keeps_the_order_of_its_submission() {
    let Some(setup) = two() else { return };
    let bytes = 70_001;
    let rounds: Vec<Vec<u8>> = (0..30).map(|round| noise(bytes, round)).collect();
    let (here, there, again) = (setup.on(0, bytes), setup.on(1, bytes), setup.on(0, bytes));
    let sources: Vec<_> = rounds.iter().map(|content| setup.pinned(content)).collect();
    let backs: Vec<_> = rounds.iter().map(|_| setup.pinned(&vec![0; bytes])).collect();
    // The same buffers in every round, on any streams, without a wait in between.
    for (round, (source, back)) in sources.iter().zip(&backs).enumerate() {
        let priority = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low][round % 3];
        let options = TransferOptions::new().priority(priority);
        for (src, dst) in [(source, &here), (&here, &there), (&there, &again), (&again, back)] {
            let transfer = setup.manager.copy(src, dst).options(options).submit();
            assert!(transfer.refusal().is_none(), "{transfer:?}");
        }
    }
    for (round, (back, content)) in backs.iter().zip(&rounds).enumerate() {
        assert!(*back.read().unwrap() == content[..], "round {round}");
    }
    drop((here, there, again, sources, backs));
    setup.finish();
}

#[test]
fn what_is_dropped_early_arrives_and_nothing_leaks() {
    let Some(setup) = two() else { return };
    let content = noise(1 << 20, 3);
    let last = setup.on(1, content.len());
    for _ in 0..10 {
        let (src, middle) = (setup.filled(0, &content), setup.on(1, content.len()));
        drop(setup.manager.copy(&src, &middle).submit());
        drop(src);
        drop(setup.manager.copy(&middle, &last).submit());
    }
    assert!(setup.content(&last) == content);
    drop(setup.manager.copy(&last, &setup.on(0, content.len())).submit());
    drop(last);
    setup.finish();
}

#[test]
fn threads_that_are_first_at_once_all_get_their_bytes() {
    let Some(setup) = two() else { return };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let setup = &setup;
            scope.spawn(move || {
                let content = noise(40_001, seed);
                let (from, to) = if seed % 2 == 0 { (0, 1) } else { (1, 0) };
                let (src, dst) = (setup.filled(from, &content), setup.on(to, content.len()));
                let report = setup.manager.copy(&src, &dst).wait().unwrap();
                assert_eq!(report.method, TransferMethod::PeerToPeer);
                assert!(setup.content(&dst) == content, "thread {seed}");
            });
        }
    });
    setup.finish();
}

#[test]
fn ranges_outside_the_buffers_move_nothing() {
    let Some(setup) = two() else { return };
    let (src, dst) = (setup.filled(0, &[1; 100]), setup.filled(1, &[0xEE; 100]));
    for (src_offset, dst_offset, size, kind) in [
        (0, 0, 0, ErrorKind::InvalidArgument),
        (1, 0, 100, ErrorKind::OutOfRange),
        (0, 1, 100, ErrorKind::OutOfRange),
        (usize::MAX, 0, 2, ErrorKind::OutOfRange),
        (0, usize::MAX - 1, 3, ErrorKind::OutOfRange),
    ] {
        let refused = setup.manager.transfer_buffer(&src, &dst, src_offset, dst_offset, size);
        assert_eq!(refused.wait().unwrap_err().kind(), kind, "{src_offset} {dst_offset} {size}");
    }
    assert_eq!(setup.content(&dst), [0xEE; 100]);
    drop((src, dst));
    setup.finish();
}

#[test]
fn backend_reports_enables_and_refuses_peer_access() {
    let Some(setup) = two() else { return };
    let [a, b] = setup.devices;
    let backend = setup.manager.backend(a).unwrap();
    assert_eq!(backend.peer_access(a, a).unwrap(), PeerAccess::Unavailable);
    assert_eq!(backend.peer_access(a, b).unwrap(), PeerAccess::Available);
    backend.enable_peer_access(a, b).unwrap();
    backend.enable_peer_access(a, b).unwrap();
    assert_eq!(backend.peer_access(a, b).unwrap(), PeerAccess::Enabled);
    assert_eq!(backend.peer_access(b, a).unwrap(), PeerAccess::Available, "one way is one way");
    assert_eq!(backend.enable_peer_access(a, a).unwrap_err().kind(), ErrorKind::Unsupported);
    let unknown = DeviceId::Cuda(u32::MAX);
    assert_eq!(backend.peer_access(a, unknown).unwrap_err().kind(), ErrorKind::UnknownDevice);

    let (here, near, there) = (setup.on(0, 64), setup.on(0, 64), setup.on(1, 64));
    let host = setup.pinned(&[1; 64]);
    let queue = backend.lease_queue(a, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    for (src, dst) in [(&here, &near), (&host, &there), (&here, &host)] {
        let error = submit(&*queue, &Operation::CopyPeer { src, dst }, Timing::Off).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    // A stream of either device copies in both directions.
    submit(&*queue, &Operation::CopyPeer { src: &there, dst: &here }, Timing::Off).unwrap().wait().unwrap();
    drop((here, near, there, host, queue, backend));
    setup.finish();
}

#[test]
fn recordings_of_several_devices_replay_in_order() {
    let Some(setup) = two() else { return };
    let bytes = 300_001;
    let [src, back] = [0, 0].map(|device| setup.on(device, bytes));
    let dst = setup.filled(1, &vec![0; bytes]);
    let options = TransferOptions::new().only(TransferMethod::PeerToPeer);
    // There by one device's queue, and back by the other's.
    let pairs = [(src.clone(), dst.clone()), (dst.clone(), back.clone())];
    let recorded = setup.manager.record(&pairs, &options).unwrap();
    assert!(recorded.planned().map(|group| group.lane).eq(setup.devices), "{recorded:?}");
    for seed in 1..4 {
        let content = noise(bytes, seed);
        setup.manager.copy(&setup.pinned(&content), &src).wait().unwrap();
        let report = recorded.replay().wait().unwrap();
        let groups: Vec<_> = report.groups.iter().map(|group| (group.method, group.lane)).collect();
        assert_eq!(groups, setup.devices.map(|device| (TransferMethod::PeerToPeer, device)));
        assert!(setup.content(&dst) == content && setup.content(&back) == content, "replay {seed}");
    }
    drop((pairs, back));
    drop((recorded, src, dst));
    setup.finish();
}
