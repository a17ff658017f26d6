//! Copies between CUDA's memory and the same GPU's wgpu device, by the manager and by queues.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use transload_backend_wgpu::wgpu;
use transload_core::{
    Access, Backend as _, DeviceId, ErrorKind, MemoryKind, Operation, OperationRecord, OperationSampling,
    OperationSink, Place, RawBuffer, Stamp, StreamPriority, Timing, TransferMethod, WorkloadType, submit,
};
use transload_cuda_sim::harness;
use transload_memory::CudaDevice;
use transload_transfer::TransferOptions;

use crate::{
    MIB,
    adopted::assert_times,
    cuda::{Shared, shared, shared_on},
    framework::frameworks,
    setup,
    shaders::{doubling, pipeline},
};

/// An address that no memory has.
const ILLEGAL_ADDRESS: u32 = 700;

/// Memory of CUDA and of the wgpu device, and pinned memory of the first.
fn buffers(shared: &Shared, bytes: usize) -> [RawBuffer; 3] {
    let theirs = shared.memory.allocate(MemoryKind::Device, bytes).unwrap();
    [theirs, shared.setup.allocate(MemoryKind::Device, bytes), shared.pinned(bytes)]
}

/// Bytes of the wgpu device's memory, as its own queue downloads them.
fn read(shared: &Shared, ours: &RawBuffer) -> Vec<u8> {
    let host = shared.setup.filled(MemoryKind::Pinned, ours.len(), 0);
    drop(crate::copy(&shared.setup.queue(), ours, &host));
    let bytes = host.read().unwrap();
    bytes.to_vec()
}

/// More than a part, on the software driver, at odd places.
#[test]
fn long_copies_both_ways_keep_every_byte() {
    let Some(shared) = shared() else { return };
    let bytes = 101 * MIB + 3;
    let [theirs, ours, host] = buffers(&shared, bytes + 8);
    host.write().unwrap().copy_from_slice(&harness::noise(bytes + 8, 1));
    let expected = host.read().unwrap().to_vec();
    shared.copy(&host, &theirs);
    let part = |buffer: &RawBuffer, from: usize| buffer.slice(from..from + bytes).unwrap();
    let plan =
        shared.manager.plan(theirs.place(), ours.place(), bytes as u64, &TransferOptions::new()).unwrap();
    let report = shared.manager.copy(&part(&theirs, 1), &part(&ours, 3)).wait().unwrap();
    assert_eq!(
        (plan.method, report.method),
        (TransferMethod::DirectCopy, TransferMethod::DirectCopy),
        "{plan}"
    );
    assert_eq!((report.lane, report.bytes), (shared.setup.device, bytes as u64));
    let found = read(&shared, &ours);
    assert!(found[3..3 + bytes] == expected[1..=bytes]);
    // Back, over the place from where it came.
    shared.manager.copy(&part(&ours, 3), &part(&theirs, 5)).wait().unwrap();
    shared.copy(&theirs, &host);
    let found = host.read().unwrap();
    assert!(found[..5] == expected[..5] && found[5..5 + bytes] == expected[1..=bytes]);
    drop(found);
    drop((theirs, ours, host));
    shared.finish();
}

#[test]
fn pinned_memory_of_the_other_driver_is_copied_as_pageable() {
    let Some(shared) = shared() else { return };
    let bytes = 3 * MIB + 5;
    let [theirs, ours, their_host] = buffers(&shared, bytes);
    let our_host = shared.setup.filled(MemoryKind::Pinned, bytes, 0);
    assert!(our_host.is_known_to(ours.place().device) && !our_host.is_known_to(theirs.place().device));
    assert!(their_host.is_known_to(theirs.place().device) && !their_host.is_known_to(ours.place().device));
    for (seed, host, there) in [(1, &our_host, &theirs), (2, &their_host, &ours)] {
        let content = harness::noise(bytes, seed);
        host.write().unwrap().copy_from_slice(&content);
        let up = shared.manager.copy(host, there).wait().unwrap();
        host.write().unwrap().fill(0);
        let down = shared.manager.copy(there, host).wait().unwrap();
        assert!(*host.read().unwrap() == content[..]);
        for (report, near) in [(&up, up.path.src), (&down, down.path.dst)] {
            assert_eq!(near, Place::new(DeviceId::Cpu, MemoryKind::Pageable), "{report:#}");
            // The device's memory may be the host's.
            let methods = [TransferMethod::HostStaged, TransferMethod::ZeroCopy];
            assert!(methods.contains(&report.method), "{report:#}");
        }
        let piece = |of: &RawBuffer, at: usize| of.slice(at * 4001..at * 4001 + 3999).unwrap();
        let pairs: Vec<_> = (0..700).map(|at| (piece(there, at), piece(host, 699 - at))).collect();
        host.write().unwrap().fill(0xEE);
        let report = shared.manager.copy_many(&pairs).wait().unwrap();
        assert_eq!(report.groups[0].path.dst.kind, MemoryKind::Pageable, "{report:#}");
        let found = host.read().unwrap();
        for at in 0..700 {
            let (from, to) = (at * 4001, (699 - at) * 4001);
            assert!(
                found[to..to + 3999] == content[from..from + 3999] && found[to + 3999..][..2] == [0xEE; 2]
            );
        }
    }
    // Their own drivers know them.
    for (host, there) in [(&our_host, &ours), (&their_host, &theirs)] {
        let report = shared.manager.copy(host, there).wait().unwrap();
        assert_eq!(report.path.src.kind, MemoryKind::Pinned, "{report:#}");
    }
    drop((theirs, ours, their_host, our_host));
    shared.finish();
}

#[test]
fn lists_both_ways_keep_every_byte_and_change_no_other() {
    let Some(shared) = shared() else { return };
    let (count, bytes, distance) = (1_000, 1_021, 1_031);
    let [theirs, ours, host] = buffers(&shared, count * distance);
    host.write().unwrap().copy_from_slice(&harness::noise(count * distance, 2));
    let expected = host.read().unwrap().to_vec();
    shared.copy(&host, &theirs);
    let piece = |buffer: &RawBuffer, index: usize| {
        buffer.slice(index * distance + 3..index * distance + 3 + bytes).unwrap()
    };
    // In another order there.
    let to = |index: usize| (index * 7) % count;
    let pairs: Vec<_> = (0..count).map(|index| (piece(&theirs, index), piece(&ours, to(index)))).collect();
    shared.manager.copy(&shared.setup.filled(MemoryKind::Pinned, ours.len(), 9), &ours).wait().unwrap();
    shared.manager.copy_many(&pairs).wait().unwrap();
    let found = read(&shared, &ours);
    for index in 0..count {
        let (from, at) = (index * distance + 3, to(index) * distance);
        assert!(found[at + 3..at + 3 + bytes] == expected[from..from + bytes], "piece {index}");
        assert!(
            found[at..at + 3] == [9; 3] && found[at + 3 + bytes..at + distance] == [9; 7],
            "piece {index}"
        );
    }
    let back: Vec<_> = pairs.into_iter().map(|(theirs, ours)| (ours, theirs)).collect();
    host.write().unwrap().fill(8);
    shared.copy(&host, &theirs);
    shared.manager.copy_many(&back).wait().unwrap();
    shared.copy(&theirs, &host);
    let found = host.read().unwrap();
    for index in 0..count {
        let from = index * distance;
        assert!(found[from + 3..from + 3 + bytes] == expected[from + 3..from + 3 + bytes], "piece {index}");
        assert!(found[from..from + 3] == [8; 3], "piece {index}");
    }
    drop(found);
    drop((back, theirs, ours, host));
    shared.finish();
}

/// From before the first part of either API to after the last one, for the report and for a profiler.
#[test]
fn copies_both_ways_are_timed_and_profiled() {
    #[derive(Default)]
    struct Recorder(Mutex<Vec<OperationRecord>>);
    impl OperationSink for Recorder {
        fn operation(&self, record: OperationRecord) {
            self.0.lock().unwrap().push(record);
        }
    }
    let Some(shared) = shared() else { return };
    let recorder = Arc::new(Recorder::default());
    let sink: Arc<dyn OperationSink> = Arc::clone(&recorder) as _;
    if let Err(error) = shared.setup.backend.attach_sink(&sink, OperationSampling::ALL) {
        return println!("skipped: {error}");
    }
    // By a queue that only copies, and by wgpu's, in two parts on the software driver.
    for bytes in [MIB, 48 * MIB] {
        let [theirs, ours, _host] = buffers(&shared, bytes);
        for (src, dst) in [(&theirs, &ours), (&ours, &theirs)] {
            shared.manager.copy(src, dst).wait().unwrap();
            let half = |buffer: &RawBuffer, index: usize| {
                buffer.slice(index * bytes / 2..(index + 1) * bytes / 2).unwrap()
            };
            let halves = [0, 1].map(|index| (half(src, index), half(dst, index)));
            let operations = [Operation::Copy { src, dst }, Operation::CopyBatch { pairs: &halves }];
            for operation in &operations {
                recorder.0.lock().unwrap().clear();
                // Of a busy machine's times one is short.
                let is_whole = (0..10).any(|_| {
                    let begun = Instant::now();
                    let queue = shared.setup.queue();
                    let fence = submit(&*queue, operation, Timing::Measured).unwrap();
                    fence.wait().unwrap();
                    let elapsed = begun.elapsed();
                    let moving = fence.timeline().take_duration(fence.point()).unwrap().unwrap();
                    assert!(moving <= elapsed && !moving.is_zero(), "{moving:?} of {elapsed:?}");
                    let record = recorder.0.lock().unwrap().pop().unwrap();
                    let time = |stamp: &Stamp| stamp.time().unwrap().unwrap();
                    let recorded = time(&record.end) - time(&record.begin);
                    assert_eq!((record.info.bytes, record.queue), (bytes as u64, fence.timeline().id()));
                    let recorded = Duration::from_nanos(u64::try_from(recorded).unwrap());
                    // Submitting takes longer than a short copy.
                    bytes == MIB || moving.min(recorded) > elapsed / 4
                });
                assert!(is_whole, "{bytes} bytes by {operation:?}");
            }
            let report = shared.manager.copy(src, dst).timing(Timing::Measured).wait().unwrap();
            assert!(report.moving.is_some(), "{report}");
        }
    }
    shared.setup.backend.detach_sink(&sink);
    recorder.0.lock().unwrap().clear();
    shared.finish();
}

/// Each copy comes after what uses the same bytes before, of either family, and before what does later.
#[test]
fn copies_come_after_and_before_work_of_both() {
    let Some(shared) = shared() else { return };
    let bytes = 3 * MIB + 4;
    let [theirs, ours, host] = buffers(&shared, bytes);
    let (between, alias) = shared.allocate(bytes);
    let long = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| shared.memory.allocate(kind, 32 * MIB));
    let [long_src, long_dst] = long.map(Result::unwrap);
    let queue = shared.setup.queue();
    for round in 0..4 {
        host.write().unwrap().copy_from_slice(&harness::noise(bytes, round));
        let expected = host.read().unwrap().to_vec();
        // CUDA's copy ends long after the call.
        shared.copy(&long_src, &long_dst);
        shared.copy(&host, &theirs);
        drop(crate::copy(&queue, &theirs, &ours));
        shared.copy(&long_src.slice(..MIB).unwrap(), &theirs.slice(..MIB).unwrap());
        assert!(read(&shared, &ours) == expected);
        // The queue writes what CUDA has, too, and CUDA reads it.
        drop(crate::copy(&queue, &ours, &alias));
        drop(crate::copy(&queue, &between, &ours));
        drop(crate::copy(&queue, &ours, &theirs));
        shared.copy(&theirs, &host);
        assert!(*host.read().unwrap() == *expected);
    }
    drop((theirs, ours, host, between, alias, long_src, long_dst, queue));
    shared.finish();
}

/// Also those that are not by the framework's queue, which tells nothing of what it submits. On llvmpipe all are.
#[test]
fn copies_come_after_what_a_framework_submitted() {
    let Some(framework) = frameworks().into_iter().next() else { return };
    let Some(shared) = shared_on(framework.adopted()) else { return };
    let pipeline = pipeline(&framework.device);
    // A GPU takes some milliseconds.
    let before = if shared.test.is_simulated() { 2 } else { 200 };
    let submit = |long: &wgpu::Buffer, buffer: &wgpu::Buffer| {
        let doubled = [vec![long; before], vec![buffer]].concat();
        framework.queue.submit(doubled.into_iter().map(|of| doubling(&framework.device, &pipeline, of)));
    };
    // Of an adopted buffer wgpu's own queue would copy.
    let (long, ours) = (framework.buffer(32 * MIB), shared.setup.allocate(MemoryKind::Device, 4 * MIB));
    let buffer = shared.setup.backend.buffer(&ours).unwrap();
    let theirs = shared.memory.allocate(MemoryKind::Device, ours.len()).unwrap();
    let (numbers, found) = (shared.setup.numbers(ours.len()), shared.pinned(ours.len()));
    let copy = |src: &RawBuffer, dst: &RawBuffer| shared.manager.copy(src, dst).wait().unwrap();
    for _ in 0..3 {
        copy(&numbers, &ours);
        submit(&long, &buffer);
        let report = copy(&ours, &theirs);
        assert_eq!((report.method, report.lane), (TransferMethod::DirectCopy, shared.setup.device));
        shared.copy(&theirs, &found);
        assert_times(&found, 2);
        // It does not see what comes after.
        copy(&numbers, &theirs);
        submit(&long, &buffer);
        copy(&theirs, &ours);
        copy(&ours, &found);
        assert_times(&found, 1);
    }
    drop((theirs, ours, buffer, numbers, found));
    shared.finish();
}

#[test]
fn operations_that_are_no_copies_between_both_are_refused() {
    let Some(shared) = shared() else { return };
    let [theirs, ours, host] = buffers(&shared, 4096);
    let queue = shared.setup.queue();
    let refused = |operation: &Operation<'_>| submit(&*queue, operation, Timing::Off).unwrap_err().kind();
    assert_eq!(refused(&Operation::Copy { src: &theirs, dst: &host }), ErrorKind::Unsupported);
    let [one, two] =
        [0..2048, 2048..4096].map(|range| (theirs.slice(range.clone()).unwrap(), ours.slice(range).unwrap()));
    let pairs = [one, (two.1, two.0)];
    assert_eq!(refused(&Operation::CopyBatch { pairs: &pairs }), ErrorKind::Unsupported);
    let cuda = CudaDevice::new(shared.test.ordinal()).unwrap();
    let again = shared.setup.backend.connect_cuda(&cuda, || unreachable!()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidArgument, "{again}");
    drop((theirs, ours, host, pairs, queue));
    shared.finish();
}

#[test]
fn only_the_same_gpu_is_connected() {
    let Some(setup) = setup() else { return };
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let cuda = CudaDevice::new(harness::device().ordinal()).unwrap();
    let refused = setup.backend.connect_cuda(&cuda, || unreachable!()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UnknownDevice, "{refused}");
    let [theirs, ours] = [cuda.id(), setup.device].map(|device| Place::new(device, MemoryKind::Device));
    assert_eq!(setup.backend.copier(theirs, ours), None);
}

/// A lost CUDA device is not taken for the wgpu device of the copy.
#[test]
fn loss_of_cuda_is_no_loss_of_the_wgpu_device() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let Some(shared) = shared() else { return };
    let [theirs, ours, host] = buffers(&shared, 4096);
    let queue = shared.setup.queue();
    let to_ours = || submit(&*queue, &Operation::Copy { src: &theirs, dst: &ours }, Timing::Off)?.wait();
    to_ours().unwrap();
    shared.test.sim().unwrap().poison(ILLEGAL_ADDRESS);
    let lost = to_ours().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Device, "{lost}");
    let named = DeviceId::Cuda(shared.test.ordinal()).to_string();
    assert!(lost.to_string().contains(&named), "{lost}");
    let well = shared.setup.filled(MemoryKind::Pageable, 4096, 5);
    crate::copy(&queue, &well, &ours).wait().unwrap();
    assert_eq!(read(&shared, &ours), [5; 4096]);
    drop((theirs, ours, host, well, queue));
    let Shared { setup, memory, manager, .. } = shared;
    drop((manager, memory));
    // Told once, and as that of another device.
    assert_eq!(setup.backend.drain().unwrap_err().kind(), ErrorKind::Device);
    setup.assert_empty();
    let _queue =
        setup.backend.lease_queue(setup.device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    assert_eq!(Arc::strong_count(&setup.backend), 1);
}

/// The submitting thread waits for CUDA, so a task's is not asked to.
#[test]
fn awaited_copies_are_left_to_the_executor() {
    let Some(shared) = shared() else { return };
    let [theirs, ours, host] = buffers(&shared, MIB);
    // The first use of a path may be left to it, too.
    shared.manager.copy(&theirs, &ours).wait().unwrap();
    let mut submitted = std::pin::pin!(shared.manager.copy(&theirs, &ours).submit_async());
    let polled = submitted.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(polled.is_pending());
    pollster::block_on(submitted).wait().unwrap();
    drop((theirs, ours, host));
    shared.finish();
}

/// wgpu calls it while it submits, before the queue has the submission that it would wait for.
#[test]
fn copy_in_a_callback_of_wgpu_is_refused_and_does_not_hang() {
    let Some(shared) = shared() else { return };
    let [theirs, ours, host] = buffers(&shared, 4096);
    let (backend, id) = (Arc::clone(&shared.setup.backend), shared.setup.device);
    let device = backend.device(id).unwrap();
    let mapped = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let (queue, src, dst) = (shared.setup.queue(), theirs.clone(), ours.clone());
    let (sender, outcome) = std::sync::mpsc::channel();
    mapped.map_async(wgpu::MapMode::Read, .., move |_| {
        let copied = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off);
        sender.send(copied.map(drop)).unwrap();
    });
    let used = shared.setup.allocate(MemoryKind::Device, 64);
    let encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    backend.submit(id, [encoder.finish()], &[(&used, Access::Write)]).unwrap().wait().unwrap();
    assert_eq!(outcome.try_recv().unwrap().unwrap_err().kind(), ErrorKind::Busy);
    drop((theirs, ours, host, used, mapped));
    shared.finish();
}

/// The driver's code for too little memory.
const OUT_OF_MEMORY: u32 = 2;

/// The software driver's device takes 32 MiB for the memory in between.
#[test]
fn failure_midway_is_that_of_the_copy_and_of_no_device() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let Some(shared) = shared() else { return };
    let bytes = 40 * MIB;
    let [theirs, ours, host] = buffers(&shared, bytes);
    shared.copy(&host, &theirs);
    let queue = shared.setup.queue();
    for (src, dst) in [(&theirs, &ours), (&ours, &theirs)] {
        let copy = || submit(&*queue, &Operation::Copy { src, dst }, Timing::Off);
        copy().unwrap().wait().unwrap();
        let end = |nth: u64| {
            shared.test.sim().unwrap().fail_call(Some("cuMemcpyDtoDAsync_v2"), nth, OUT_OF_MEMORY);
            copy().and_then(|fence| fence.wait())
        };
        // Nothing was copied: the destination is as it was.
        assert_eq!(end(1).unwrap_err().kind(), ErrorKind::OutOfMemory);
        shared.manager.copy(dst, &host).wait().unwrap();
        // A part was: who reads it is told.
        let failed = end(2).unwrap_err();
        assert!(failed.kind() == ErrorKind::OutOfMemory && failed.is_partial(), "{failed}");
        let read = shared.manager.copy(dst, &host).wait().unwrap_err();
        assert_eq!(read.kind(), ErrorKind::SourceFailed, "{read}");
        copy().unwrap().wait().unwrap();
        shared.manager.copy(dst, &host).wait().unwrap();
    }
    drop((theirs, ours, host, queue));
    shared.finish();
}

/// A part that CUDA has copied halfway is of memory in between, but its error marks the destination, in the place of what the queue does there.
#[test]
fn failure_of_cuda_in_a_part_waits_for_earlier_work_of_the_queue() {
    /// More than a table of the kernel's has, so that each is a launch.
    const PIECES: usize = 20_000;
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let Some(shared) = shared() else { return };
    // So long that wgpu's queue has Vulkan's part, before which nothing waits for its earlier work.
    let bytes = 40 * MIB;
    let [theirs, ours, host] = buffers(&shared, bytes);
    shared.copy(&host, &theirs);
    let [long, other] = [(); 2].map(|()| shared.setup.allocate(MemoryKind::Device, 64 * MIB));
    let queue = shared.setup.queue();
    let piece = |buffer: &RawBuffer, index: usize| {
        buffer.slice(index * bytes / PIECES..(index + 1) * bytes / PIECES).unwrap()
    };
    let pieces: Vec<_> = (0..PIECES).map(|index| (piece(&theirs, index), piece(&ours, index))).collect();
    let list = || submit(&*queue, &Operation::CopyBatch { pairs: &pieces }, Timing::Off);
    list().unwrap().wait().unwrap();
    (0..6).for_each(|_| drop(crate::copy(&queue, &long, &other)));
    drop(crate::copy(&queue, &long.slice(..bytes).unwrap(), &ours));
    shared.test.sim().unwrap().fail_call(Some("cuLaunchKernel"), 2, OUT_OF_MEMORY);
    let failed = list().unwrap_err();
    assert!(failed.kind() == ErrorKind::OutOfMemory && failed.is_partial(), "{failed}");
    assert_eq!(queue.outstanding(), 0);
    drop((pieces, theirs, ours, host, long, other, queue));
    shared.finish();
}

#[test]
fn copies_go_by_the_host_if_memory_in_between_is_short() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let Some(shared) = shared() else { return };
    let (bytes, part) = (4 * MIB, MIB / 2);
    let [theirs, ours, host] = buffers(&shared, bytes);
    host.write().unwrap().copy_from_slice(&harness::noise(bytes, 3));
    shared.copy(&host, &theirs);
    // Neither as much as it wants, nor the least.
    let short = || {
        let sim = shared.test.sim().unwrap();
        [1, 2].into_iter().for_each(|nth| sim.fail_call(Some("cuImportExternalMemory"), nth, OUT_OF_MEMORY));
    };
    let copy = || shared.manager.copy(&theirs, &ours);
    // Where no other method may be used, the shortage is the error.
    short();
    let refused = copy().method(TransferMethod::DirectCopy).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    short();
    assert_eq!(copy().wait().unwrap().method, TransferMethod::HostStaged);
    assert!(read(&shared, &ours) == *host.read().unwrap());
    shared.manager.copy(&shared.setup.filled(MemoryKind::Pageable, bytes, 9), &ours).wait().unwrap();
    let piece = |side: &RawBuffer, index: usize| side.slice(index * MIB..index * MIB + part).unwrap();
    let pieces: Vec<_> = (0..4).map(|index| (piece(&theirs, index), piece(&ours, index))).collect();
    short();
    shared.manager.copy_many(&pieces).wait().unwrap();
    assert!(read(&shared, &ours)[MIB..MIB + part] == host.read().unwrap()[MIB..MIB + part]);
    assert_eq!(copy().wait().unwrap().method, TransferMethod::DirectCopy);
    drop((pieces, theirs, ours, host));
    shared.finish();
}
