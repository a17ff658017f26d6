//! Many copies between two devices.

use std::{
    future::{Future as _, IntoFuture as _},
    pin::Pin,
    sync::Arc,
    task::{self, Poll, Waker},
};

use transload::{
    CopyManyReport, DeviceId, ErrorKind, MemoryKind, RawBuffer, StreamPriority, StridedLayout,
    TransferMethod, WorkloadType,
    backend::{ListWay, Operation, RejectReason, Timing, submit},
    cuda::{CudaDevice, CudaMemoryManager, streams::CudaStream},
};
use transload_cuda_sys::{
    Context, ffi,
    trace::{self, Call},
};

use super::{Setup, called, two};
use crate::setup::noise;

/// Lengths of the pieces, in turn: none is a multiple of a word, and one is long.
const LENGTHS: [usize; 4] = [4093, 1, 511, 70_001];
const PIECES: usize = 400;
/// Between two pieces on either side.
const GAP: usize = 3;

/// Returns the pieces of two buffers, which are as long: in reverse order at the destination.
fn pairs(src: &RawBuffer, dst: &RawBuffer) -> Vec<(RawBuffer, RawBuffer)> {
    let lengths: Vec<_> = (0..PIECES).map(|at| LENGTHS[at % LENGTHS.len()]).collect();
    let mut begin = GAP;
    let pairs = lengths.iter().map(|length| {
        let (from, to) = (begin, src.len() - begin - length);
        begin += length + GAP;
        (src.slice(from..from + length).unwrap(), dst.slice(to..to + length).unwrap())
    });
    pairs.collect()
}

fn bytes() -> usize {
    GAP + (0..PIECES).map(|at| LENGTHS[at % LENGTHS.len()] + GAP).sum::<usize>()
}

/// Returns the pieces' bytes where they are to be, and `0xEE` elsewhere.
fn expected(content: &[u8]) -> Vec<u8> {
    let mut all = vec![0xEE; content.len()];
    let mut begin = GAP;
    for at in 0..PIECES {
        let length = LENGTHS[at % LENGTHS.len()];
        let to = content.len() - begin - length;
        all[to..to + length].copy_from_slice(&content[begin..begin + length]);
        begin += length + GAP;
    }
    all
}

fn kernels_of(calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.name.starts_with("cuLaunchKernel")).count()
}

fn copies_of(calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.name.starts_with("cuMemcpy")).count()
}

/// Copies a list from one device to the other, checks every byte of the destination, and returns the driver's calls.
fn copied(setup: &Setup, (from, to): (usize, usize), way: Option<ListWay>) -> (CopyManyReport, Vec<Call>) {
    let content = noise(bytes(), from as u64);
    let (src, dst) = (setup.filled(from, &content), setup.filled(to, &vec![0xEE; content.len()]));
    let pairs = pairs(&src, &dst);
    let list = || {
        let list = setup.manager.copy_many(&pairs);
        if let Some(way) = way { list.way(way) } else { list }
    };
    // The first verifies the pair, and loads the kernel.
    list().wait().unwrap();
    setup.manager.copy(&setup.filled(to, &vec![0xEE; content.len()]), &dst).wait().unwrap();
    let trace = trace::start();
    let report = list().wait().unwrap();
    let calls = trace.calls_of_this_thread();
    assert!(setup.content(&dst) == expected(&content), "{from} → {to} by {way:?}");
    (report, calls)
}

#[test]
fn list_between_peers_arrives_by_each_way_and_touches_nothing_else() {
    let Some(setup) = two() else { return };
    for ends in [(0, 1), (1, 0)] {
        for way in [ListWay::CopyEngine, ListWay::CopyKernel, ListWay::OneByOne] {
            let (report, calls) = copied(&setup, ends, Some(way));
            assert_eq!((report.pairs, report.groups.len()), (PIECES, 1), "{report:#}");
            let group = &report.groups[0];
            assert_eq!((group.method, group.lane), (TransferMethod::PeerToPeer, setup.devices[ends.0]));
            let (kernels, copies) = (kernels_of(&calls), copies_of(&calls));
            match way {
                ListWay::CopyKernel => assert!(kernels > 0 && kernels < 20 && copies == 0, "{calls:?}"),
                ListWay::OneByOne => {
                    assert_eq!(called(&calls, "cuMemcpyPeerAsync").len(), PIECES, "{calls:?}");
                }
                _ => assert!(kernels == 0 && copies > 0 && copies < PIECES / 10, "{calls:?}"),
            }
        }
    }
    setup.finish();
}

#[test]
fn stream_of_either_device_takes_a_list_by_each_way() {
    let Some(setup) = two() else { return };
    let content = noise(bytes(), 5);
    let (src, dst) = (setup.filled(0, &content), setup.on(1, content.len()));
    let pairs = pairs(&src, &dst);
    setup.manager.copy_many(&pairs).wait().unwrap();
    for test in setup.tests {
        let device = CudaDevice::new(test.ordinal()).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        for way in [ListWay::CopyEngine, ListWay::CopyKernel, ListWay::OneByOne] {
            setup.manager.copy(&setup.filled(1, &vec![0xEE; content.len()]), &dst).wait().unwrap();
            let report = setup.manager.copy_many(&pairs).way(way).on(&stream).wait().unwrap();
            assert_eq!(report.groups[0].method, TransferMethod::PeerToPeer);
            assert!(setup.content(&dst) == expected(&content), "on {} by {way}", test.ordinal());
        }
    }
    drop((pairs, src, dst));
    setup.finish();
}

/// Loading waits for the whole device.
#[test]
fn polled_list_loads_no_kernel_of_the_streams_device() {
    let Some(setup) = two() else { return };
    let (src, dst) = (setup.filled(0, &noise(4096, 12)), setup.on(1, 4096));
    // Enables access, and loads the kernels of the first device.
    let piece = |of: &RawBuffer, at: usize| of.slice(at * 256..at * 256 + 200).unwrap();
    let pairs: Vec<_> = (0..16).map(|at| (piece(&src, at), piece(&dst, 15 - at))).collect();
    setup.manager.copy_many(&pairs).way(ListWay::CopyKernel).wait().unwrap();
    let device = CudaDevice::new(setup.tests[1].ordinal()).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    setup.manager.copy(&dst, &src).on(&stream).wait().unwrap();
    let mut copy = setup.manager.copy_many(pairs).on(&stream).into_future();
    let trace = trace::start();
    // Another thread may be done already.
    let ended = Pin::new(&mut copy).poll(&mut task::Context::from_waker(Waker::noop()));
    let calls = trace.calls_of_this_thread();
    assert!(!calls.iter().any(|call| call.name.contains("Load")), "{calls:?}");
    match ended {
        Poll::Ready(copied) => copied,
        Poll::Pending => pollster::block_on(copy),
    }
    .unwrap();
    drop((trace, src, dst, stream, device));
    setup.finish();
}

#[test]
fn list_between_peers_goes_by_a_kernel_unasked() {
    let Some(setup) = two() else { return };
    let (report, calls) = copied(&setup, (0, 1), None);
    assert_eq!(report.groups[0].method, TransferMethod::PeerToPeer, "{report:#}");
    assert!(kernels_of(&calls) > 0 && copies_of(&calls) == 0, "{calls:?}");
    setup.finish();
}

#[test]
fn blocks_between_peers_arrive_in_the_order_of_other_work() {
    let Some(setup) = two() else { return };
    let (block, count) = (4096, 64);
    let indices: Vec<usize> = (0..count).map(|at| at * 5 % count).collect();
    let back: Vec<usize> = (0..count).map(|at| at * 11 % count).collect();
    let content = noise(block * count, 7);
    let (here, there, again) =
        (setup.filled(0, &content), setup.on(1, content.len()), setup.on(0, content.len()));
    let blocks = |src: &RawBuffer, from: &[usize], dst: &RawBuffer, to: &[usize]| {
        let builder = setup.manager.copy_blocks(
            (std::slice::from_ref(src), from),
            (std::slice::from_ref(dst), to),
            block,
        );
        drop(builder.unwrap().submit());
    };
    for round in 0..20_u8 {
        let content: Vec<u8> = content.iter().map(|byte| byte ^ round).collect();
        setup.manager.copy(&setup.pinned(&content), &here).wait().unwrap();
        // Each waits for the one before on the devices.
        blocks(&here, &indices, &there, &back);
        blocks(&there, &back, &again, &indices);
        assert!(setup.content(&again) == content, "round {round}");
    }
    drop((here, there, again));
    setup.finish();
}

#[test]
fn device_accesses_no_memory_of_a_peer_before_access_is_enabled() {
    let Some(setup) = two() else { return };
    let [a, b] = setup.devices;
    let backend = setup.manager.backend(a).unwrap();
    let (here, there) = (setup.filled(0, &[1; 64]), setup.filled(1, &[2; 64]));
    let pairs = [(here.slice(..9).unwrap(), there.slice(1..10).unwrap())];
    let batches = [Operation::CopyBatch { pairs: &pairs }, Operation::CopyBatchInPlace { pairs: &pairs }];
    let single = Operation::CopyInPlace { src: &here, dst: &there };
    let queue_of = |device: DeviceId| {
        let (priority, workload) = (StreamPriority::Normal, WorkloadType::Memory);
        setup.manager.backend(device).unwrap().lease_queue(device, priority, workload).unwrap()
    };
    for operation in batches.iter().chain([&single]) {
        let error = submit(&*queue_of(a), operation, Timing::Off).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    backend.enable_peer_access(a, b).unwrap();
    for operation in batches.iter().chain([&single]) {
        submit(&*queue_of(a), operation, Timing::Off).unwrap().wait().unwrap();
    }
    // The other way was not enabled.
    let error = submit(&*queue_of(b), &single, Timing::Off).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(setup.content(&there), [1; 64]);
    drop((queue_of, pairs, backend, here, there));
    setup.finish();
}

#[test]
fn list_of_memory_that_grants_no_access_is_copied_pair_by_pair() {
    let Some(setup) = two() else { return };
    let content = noise(bytes(), 6);
    // Of a pool of its own, which grants the other device nothing.
    let device = CudaDevice::new(setup.tests[1].ordinal()).unwrap();
    let (theirs, ours) = (CudaMemoryManager::new(&device).unwrap(), CudaMemoryManager::new(&device).unwrap());
    let owner = Arc::new(theirs.allocate(MemoryKind::Device, content.len()).unwrap());
    let address = owner.device_address().unwrap();
    // SAFETY: the owner keeps the memory, which nothing else uses meanwhile.
    let dst = unsafe { ours.adopt(address, content.len(), Arc::clone(&owner)) }.unwrap();
    let (src, poison) = (setup.filled(0, &content), vec![0xEE; content.len()]);
    let pairs = pairs(&src, &dst);
    let put = || setup.manager.copy(&setup.pinned(&poison), &dst).wait().unwrap();
    put();
    let report = setup.manager.copy_many(&pairs).wait().unwrap();
    assert_eq!(report.groups[0].method, TransferMethod::PeerToPeer, "{report:#}");
    assert!(setup.content(&dst) == expected(&content));
    // As a list it can only be staged, which no kernel does.
    put();
    let error = setup.manager.copy_many(&pairs).way(ListWay::CopyKernel).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(setup.content(&dst) == poison);
    let report = setup.manager.copy_many(&pairs).way(ListWay::CopyEngine).wait().unwrap();
    assert_eq!(report.groups[0].method, TransferMethod::HostStaged, "{report:#}");
    assert!(setup.content(&dst) == expected(&content));
    // So are rows, unless that is forbidden.
    put();
    let rows = StridedLayout::new(1000).repeat(9, 2000);
    let copy = || setup.manager.copy_strided((&src, &rows), (&dst, &rows)).unwrap();
    let error = copy().method(TransferMethod::PeerToPeer).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = copy().forbid(TransferMethod::HostStaged).wait().unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("in place"), "{error}");
    let report = copy().wait().unwrap();
    assert_eq!(report.method, TransferMethod::HostStaged);
    let of_peers = report.rejected.iter().find(|rejected| rejected.method == TransferMethod::PeerToPeer);
    assert_eq!(of_peers.map(|rejected| rejected.reason), Some(RejectReason::PeerUnverified));
    let copied = setup.content(&dst);
    for at in 0..9 {
        let row = at * 2000..at * 2000 + 1000;
        assert!(
            copied[row.clone()] == content[row.clone()] && copied[row.end..][..8] == poison[..8],
            "row {at}"
        );
    }
    drop((pairs, src, dst));
    ours.drain().unwrap();
    drop(owner);
    theirs.drain().unwrap();
    drop((ours, theirs, device));
    setup.finish();
}

/// Plain memory of the second device, which is freed at the end.
struct Plain(u64, Context);

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: it was allocated, and nothing uses it any more.
        let free = || unsafe { ffi::cuMemFree_v2(self.0) };
        self.1.call("cuMemFree_v2", free).unwrap();
    }
}

#[test]
fn list_of_plain_memory_goes_by_a_kernel_of_any_value_of_the_device() {
    let Some(setup) = two() else { return };
    let content = noise(bytes(), 8);
    let devices = setup.tests.map(|test| CudaDevice::new(test.ordinal()).unwrap());
    let memory = CudaMemoryManager::new(&devices[1]).unwrap();
    let context = devices[1].context().unwrap().clone();
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    let allocate = || unsafe { ffi::cuMemAlloc_v2(&mut address, content.len()) };
    context.call("cuMemAlloc_v2", allocate).unwrap();
    let owner = Arc::new(Plain(address, context));
    // SAFETY: the owner keeps the memory, which nothing else uses meanwhile.
    let dst = unsafe { memory.adopt(address, content.len(), Arc::clone(&owner)) }.unwrap();
    let src = setup.filled(0, &content);
    let pairs = pairs(&src, &dst);
    // The first enables access.
    setup.manager.copy(&src, &dst).wait().unwrap();
    let stream = CudaStream::new(&devices[0]).unwrap();
    for on in [None, Some(&stream)] {
        setup.manager.copy(&setup.pinned(&vec![0xEE; content.len()]), &dst).wait().unwrap();
        let list = setup.manager.copy_many(&pairs).way(ListWay::CopyKernel);
        let report = if let Some(stream) = on { list.on(stream) } else { list }.wait().unwrap();
        assert_eq!(report.groups[0].method, TransferMethod::PeerToPeer, "{report:#}");
        assert!(setup.content(&dst) == expected(&content));
    }
    drop((pairs, src, dst, stream));
    memory.drain().unwrap();
    drop((owner, memory, devices));
    setup.finish();
}

#[test]
fn recorded_list_between_peers_is_a_list_at_each_replay() {
    let Some(setup) = two() else { return };
    let content = noise(bytes(), 11);
    let (src, dst) = (setup.filled(0, &content), setup.filled(1, &vec![0xEE; content.len()]));
    let recorded = setup.manager.copy_many(pairs(&src, &dst)).record().unwrap();
    recorded.replay().wait().unwrap();
    let trace = trace::start();
    recorded.replay().wait().unwrap();
    let calls = trace.calls_of_this_thread();
    assert!(kernels_of(&calls) > 0 && copies_of(&calls) == 0, "{calls:?}");
    assert!(setup.content(&dst) == expected(&content));
    drop((recorded, src, dst));
    setup.finish();
}

#[test]
fn list_of_a_peers_unified_memory_is_copied_too() {
    let Some(setup) = two() else { return };
    let content = noise(9000, 4);
    let src = setup.filled(0, &content);
    let dst = setup.manager.allocate_for(setup.devices[1], MemoryKind::Unified, content.len()).unwrap();
    let pairs: Vec<_> = (0..9)
        .map(|at| {
            let (from, to) = (at * 1000, (8 - at) * 1000);
            (src.slice(from..from + 1000).unwrap(), dst.slice(to..to + 1000).unwrap())
        })
        .collect();
    setup.manager.copy_many(&pairs).wait().unwrap();
    let found = setup.content(&dst);
    for at in 0..9 {
        assert!(found[(8 - at) * 1000..][..1000] == content[at * 1000..][..1000], "piece {at}");
    }
    drop((pairs, src, dst));
    setup.finish();
}

#[test]
fn strided_rows_between_peers_are_one_list() {
    const ROWS: usize = 300;
    const WIDTH: usize = 517;
    const PITCH: usize = 1000;
    let Some(setup) = two() else { return };
    let [matrix, packed] = [(7, PITCH), (3, WIDTH)]
        .map(|(offset, pitch)| StridedLayout::new(WIDTH).at(offset).repeat(ROWS, pitch));
    for (from, to) in [(0, 1), (1, 0)] {
        let content = noise(7 + ROWS * PITCH, from as u64);
        let (src, dst) = (setup.filled(from, &content), setup.filled(to, &vec![0xEE; 3 + ROWS * WIDTH + 5]));
        let mut expected = vec![0xEE; dst.len()];
        let rows = content[7..].chunks(PITCH).flat_map(|row| &row[..WIDTH]);
        expected[3..][..ROWS * WIDTH].iter_mut().zip(rows).for_each(|(to, from)| *to = *from);
        let copy = || setup.manager.copy_strided((&src, &matrix), (&dst, &packed)).unwrap();
        copy().wait().unwrap();
        setup.manager.copy(&setup.filled(to, &vec![0xEE; dst.len()]), &dst).wait().unwrap();
        let trace = trace::start();
        let report = copy().wait().unwrap();
        let calls = trace.calls_of_this_thread();
        assert_eq!((report.method, report.bytes), (TransferMethod::PeerToPeer, (ROWS * WIDTH) as u64));
        assert_eq!(report.lane, setup.devices[from]);
        assert!(kernels_of(&calls) > 0 && kernels_of(&calls) < 20 && copies_of(&calls) == 0, "{calls:?}");
        assert!(setup.content(&dst) == expected, "{from} → {to}");
    }
    // A kernel copies short rows, engines long ones.
    for (width, has_kernel) in [((1 << 20) - 1, true), (1 << 20, false)] {
        let content = noise(2 * PITCH + 2 * width, 9);
        let (src, dst) = (setup.filled(0, &content), setup.filled(1, &vec![0xEE; 2 * width]));
        let [matrix, packed] = [PITCH, 0].map(|gap| StridedLayout::new(width).repeat(2, width + gap));
        let copy = || setup.manager.copy_strided((&src, &matrix), (&dst, &packed)).unwrap();
        copy().wait().unwrap();
        let trace = trace::start();
        copy().wait().unwrap();
        let calls = trace.calls_of_this_thread();
        assert_eq!((kernels_of(&calls) > 0, copies_of(&calls) > 0), (has_kernel, !has_kernel), "{calls:?}");
        let rows = [&content[..width], &content[width + PITCH..][..width]].concat();
        assert!(setup.content(&dst) == rows, "{width}");
    }
    setup.finish();
}
