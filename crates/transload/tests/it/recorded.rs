//! Recorded transfers: planned once, executed at each replay, ordered with other work; unsupported ones are rejected
//! with reasons.

use std::sync::mpsc;

use transload::{
    DeviceId, ErrorKind, MemoryKind, RawBuffer, StreamPriority, TransferMethod, TransferOptions,
    WorkloadType,
    backend::{Operation, Pattern, Timing, submit},
};
use transload_cuda_sys::{AsStream, Capture, CaptureMode, trace};

use crate::cuda::{Setup, noise};

const ANY: TransferOptions = TransferOptions::new();
const BYTES: usize = 300_000;

/// Captures a stream that no other thread uses.
fn begin<S: AsStream>(stream: &S, mode: CaptureMode) -> transload_cuda_sys::Result<Capture<'_, S>> {
    // SAFETY: the tests enqueue only work to be captured, and queries are refused meanwhile.
    unsafe { Capture::begin(stream, mode) }
}

#[test]
fn replay_is_one_launch_with_current_source_bytes() {
    let setup = Setup::new();
    let sources: Vec<_> = (0..3).map(|seed| setup.filled(MemoryKind::Pinned, &noise(BYTES, seed))).collect();
    let there: Vec<_> = (0..3).map(|_| setup.allocate(MemoryKind::Device, BYTES)).collect();
    let back: Vec<_> = (0..3).map(|_| setup.filled(MemoryKind::Pinned, &vec![0xEE; BYTES])).collect();
    let up = sources.iter().cloned().zip(there.iter().cloned());
    let down = there.iter().cloned().zip(back.iter().cloned());
    let recorded = setup.manager.record(&up.chain(down).collect::<Vec<_>>(), &ANY).unwrap();
    assert!(back.iter().all(|buffer| buffer.try_read().unwrap().iter().all(|byte| *byte == 0xEE)));
    for round in 0..6 {
        for (index, source) in sources.iter().enumerate() {
            source.write().unwrap().copy_from_slice(&noise(BYTES, round * 3 + index as u64));
        }
        let trace = trace::start();
        let replay = recorded.replay();
        let calls = trace.calls_of_this_thread();
        assert_eq!(calls.iter().filter(|call| call.name == "cuGraphLaunch").count(), 1, "{calls:?}");
        assert!(!calls.iter().any(|call| call.name.starts_with("cuMemcpy")), "{calls:?}");
        drop(trace);
        let report = replay.wait().unwrap();
        let [group] = report.groups.as_slice() else { panic!("one device: {report:#}") };
        assert_eq!((group.method, group.lane), (TransferMethod::DirectCopy, setup.device));
        assert_eq!((report.bytes, report.pairs, group.chunks), (6 * BYTES as u64, 6, 6));
        assert_eq!(group.simulated, setup.test.is_simulated());
        for (index, buffer) in back.iter().enumerate() {
            assert!(*buffer.read().unwrap() == noise(BYTES, round * 3 + index as u64)[..], "round {round}");
        }
    }
}

#[test]
fn refused_replay_is_counted() {
    let setup = Setup::new();
    let source = setup.filled(MemoryKind::Pinned, &noise(BYTES, 1));
    let there = setup.allocate(MemoryKind::Device, BYTES);
    let recorded = setup.manager.record(&[(source.clone(), there)], &ANY).unwrap();
    let open = source.write().unwrap();
    assert_eq!(recorded.replay().wait().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(setup.manager.refused(), 1);
    drop(open);
    recorded.replay().wait().unwrap();
    assert_eq!(setup.manager.refused(), 1);
}

#[test]
fn a_replay_is_ordered_with_transfers_before_and_after_it() {
    let setup = Setup::new();
    let (there, copy) =
        (setup.allocate(MemoryKind::Device, BYTES), setup.allocate(MemoryKind::Device, BYTES));
    let back = setup.filled(MemoryKind::Pinned, &vec![0; BYTES]);
    let recorded = setup.manager.record(&[(there.clone(), copy.clone())], &ANY).unwrap();
    let fill = |value| {
        let backend = setup.manager.backend(setup.device).unwrap();
        let queue = backend.lease_queue(setup.device, StreamPriority::High, WorkloadType::Memory).unwrap();
        let operation = Operation::Fill { dst: &there, pattern: Pattern::U8(value) };
        drop(submit(&*queue, &operation, Timing::Off).unwrap());
    };
    for round in 0..20 {
        fill(round);
        drop(recorded.replay());
        fill(0xFF);
        setup.manager.copy(&copy, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
}

#[test]
fn recording_dropped_in_flight_lives_until_complete() {
    let setup = Setup::new();
    let content = noise(BYTES, 1);
    let back = setup.allocate(MemoryKind::Pinned, BYTES);
    let replay = {
        let source = setup.filled(MemoryKind::Pinned, &content);
        let there = setup.allocate(MemoryKind::Device, BYTES);
        let pairs = [(source, there.clone()), (there, back.clone())];
        setup.manager.record(&pairs, &ANY).unwrap().replay()
    };
    assert!(*back.read().unwrap() == content[..]);
    replay.wait().unwrap();
}

#[test]
fn transfers_by_kernel_are_recorded() {
    let setup = Setup::new();
    let source = setup.filled(MemoryKind::Mapped, &noise(5000, 2));
    let (there, back) =
        (setup.allocate(MemoryKind::Device, 5000), setup.filled(MemoryKind::Mapped, &[0; 5000]));
    let options = TransferOptions::new()
        .priority(StreamPriority::High)
        .only(TransferMethod::ZeroCopy)
        .timing(Timing::Measured);
    let pairs = [(source, there.clone()), (there, back.clone())];
    let recorded = setup.manager.record(&pairs, &options).unwrap();
    assert!(recorded.planned().all(|group| group.method == TransferMethod::ZeroCopy));
    let report = recorded.replay().wait().unwrap();
    assert!(report.groups[0].moving.is_some(), "{report:#}");
    assert!(*back.read().unwrap() == noise(5000, 2)[..]);
    // Nor does the queue keep the time of a replay without a waiter.
    let dropped = recorded.replay().fences().next().unwrap().clone();
    setup.manager.drain().unwrap();
    assert_eq!(dropped.timeline().take_duration(dropped.point()).unwrap(), None);
}

#[test]
fn recording_of_a_pair_without_a_method_is_refused_with_reasons() {
    let setup = Setup::new();
    let there = setup.allocate(MemoryKind::Device, 16 << 20);
    let pinned = setup.allocate(MemoryKind::Pinned, 16 << 20);
    let refused = |src: &RawBuffer, dst: &RawBuffer, options: &TransferOptions| {
        let good = (pinned.clone(), there.clone());
        let error = setup.manager.record(&[good, (src.clone(), dst.clone())], options).unwrap_err();
        (error.kind(), error.to_string())
    };
    let staged = TransferOptions::new().only(TransferMethod::HostStaged);
    let (kind, text) = refused(&pinned, &there, &staged);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("HostStaged: the host's side is not pageable"), "{text}");
    assert_eq!(refused(&pinned, &there.slice(1..).unwrap(), &ANY).0, ErrorKind::InvalidArgument);
    assert_eq!(setup.manager.record(&[], &ANY).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let whole = setup.manager.record(&[(pinned.clone(), there.clone())], &ANY).unwrap();
    let view = pinned.write().unwrap();
    assert_eq!(whole.replay().wait().unwrap_err().error.kind(), ErrorKind::Busy);
    drop(view);
    whole.replay().wait().unwrap();
}

#[test]
fn staged_pairs_are_submitted_by_each_replay_in_order() {
    let setup = Setup::new();
    let source = setup.filled(MemoryKind::Pageable, &noise(BYTES, 0));
    let [there, copy] = [0, 1].map(|_| setup.allocate(MemoryKind::Device, BYTES));
    let middle = setup.filled(MemoryKind::Pageable, &vec![0xEE; BYTES]);
    let back = setup.filled(MemoryKind::Pinned, &vec![0xEE; BYTES]);
    // Each pair reads what the one before it writes: through pageable memory and within the device.
    let pairs = [
        (source.clone(), there.clone()),
        (there.clone(), copy.clone()),
        (copy.clone(), middle.clone()),
        (middle.clone(), there.clone()),
        (there, back.clone()),
    ];
    let recorded = setup.manager.record(&pairs, &ANY).unwrap();
    assert_eq!(recorded.planned().len(), 5, "{recorded:?}");
    assert!(back.read().unwrap().iter().all(|byte| *byte == 0xEE), "a recording moves nothing");
    for round in 0..4 {
        source.write().unwrap().copy_from_slice(&noise(BYTES, round));
        let replay = recorded.replay();
        assert!(*back.read().unwrap() == noise(BYTES, round)[..], "round {round}");
        let report = replay.wait().unwrap();
        assert_eq!((report.pairs, report.groups.len(), report.bytes), (5, 5, 5 * BYTES as u64));
    }
}

#[test]
fn pairs_apart_are_recorded_by_device_and_path() {
    let setup = Setup::new();
    const PIECE: usize = 4096;
    let kinds = [MemoryKind::Pinned, MemoryKind::Pageable];
    let pools = kinds.map(|kind| setup.filled(kind, &noise(64 * PIECE, kind as u64)));
    let there = setup.allocate(MemoryKind::Device, 128 * PIECE);
    let part = |of: &RawBuffer, index: usize| of.slice(index * PIECE..(index + 1) * PIECE).unwrap();
    let pairs: Vec<_> =
        (0..128).map(|index| (part(&pools[index % 2], index / 2), part(&there, 127 - index))).collect();
    let recorded = setup.manager.copy_many(pairs.as_slice()).record().unwrap();
    let chunks: Vec<_> = recorded.planned().map(|group| (group.path.src.kind, group.chunks)).collect();
    assert_eq!(chunks, [(MemoryKind::Pinned, 64), (MemoryKind::Pageable, 64)]);
    let check = || {
        let host = setup.filled(MemoryKind::Pinned, &vec![0; 128 * PIECE]);
        setup.manager.copy(&there, &host).wait().unwrap();
        let contents = kinds.map(|kind| noise(64 * PIECE, kind as u64));
        for (index, got) in host.read().unwrap().rchunks(PIECE).enumerate() {
            assert!(*got == contents[index % 2][index / 2 * PIECE..][..PIECE], "piece {index}");
        }
    };
    recorded.replay().wait().unwrap();
    check();
    // What is wrong with one group is told with its pairs; the other one is copied.
    setup.manager.copy(&setup.filled(MemoryKind::Pinned, &vec![0; 128 * PIECE]), &there).wait().unwrap();
    let view = pools[1].write().unwrap();
    let error = recorded.replay().wait().unwrap_err();
    drop(view);
    assert_eq!(error.error.kind(), ErrorKind::Busy);
    assert_eq!(error.pairs, (0..64).map(|index| 2 * index + 1).collect::<Vec<_>>());
    let host = setup.filled(MemoryKind::Pinned, &vec![0xEE; 128 * PIECE]);
    setup.manager.copy(&there, &host).wait().unwrap();
    let content = noise(64 * PIECE, kinds[0] as u64);
    let zeros = host.read().unwrap().rchunks(PIECE).enumerate().all(|(index, got)| match index % 2 {
        0 => *got == content[index / 2 * PIECE..][..PIECE],
        _ => got.iter().all(|byte| *byte == 0),
    });
    assert!(zeros, "the pinned pairs only");
    recorded.replay().wait().unwrap();
    check();
}

#[test]
fn many_copies_of_unified_memory_are_one_graph() {
    let setup = Setup::new();
    const PIECE: usize = 4096;
    let content = noise(8 * PIECE, 5);
    let pinned = setup.filled(MemoryKind::Pinned, &content);
    let unified = setup.allocate(MemoryKind::Unified, 8 * PIECE);
    let part = |of: &RawBuffer, index: usize| of.slice(index * PIECE..(index + 1) * PIECE).unwrap();
    let pairs: Vec<_> = (0..8).map(|index| (part(&pinned, index), part(&unified, index))).collect();
    let recorded = setup.manager.record(&pairs, &ANY).unwrap();
    let trace = trace::start();
    let replay = recorded.replay();
    let calls = trace.calls_of_this_thread();
    drop(trace);
    assert_eq!(calls.iter().filter(|call| call.name == "cuGraphLaunch").count(), 1, "{calls:?}");
    assert_eq!(replay.wait().unwrap().groups[0].method, TransferMethod::DirectCopy);
    let back = setup.filled(MemoryKind::Pinned, &vec![0; 8 * PIECE]);
    setup.manager.copy(&unified, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn recording_of_staged_pairs_dropped_in_flight_is_completed() {
    let setup = Setup::new();
    let bytes = 5 << 20;
    let content = noise(bytes, 9);
    let back = setup.filled(MemoryKind::Pageable, &vec![0xEE; bytes]);
    {
        let source = setup.filled(MemoryKind::Pageable, &content);
        let there = setup.allocate(MemoryKind::Device, bytes);
        let recorded = setup.manager.record(&[(source, there.clone()), (there, back.clone())], &ANY).unwrap();
        drop(recorded.replay());
        drop(recorded.replay());
    }
    setup.manager.drain().unwrap();
    assert!(*back.try_read().unwrap() == content[..], "drain waited for both replays");
}

#[test]
fn library_calls_keep_a_foreign_global_capture_valid() {
    let setup = Setup::new();
    let DeviceId::Cuda(ordinal) = setup.device else { panic!("a CUDA device") };
    let device = transload::cuda::memory::CudaDevice::new(ordinal).unwrap();
    let captured = transload::cuda::streams::CudaStream::new(&device).unwrap();
    let content = noise(24 << 20, 3);
    let ((begun, has_begun), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    let stream = &captured;
    std::thread::scope(|scope| {
        let capturing = scope.spawn(move || {
            let capture = begin(stream, CaptureMode::Global);
            begun.send(()).unwrap();
            // End it also if the other thread panics.
            let _dropped = is_done.recv();
            capture.and_then(Capture::end).map(drop)
        });
        has_begun.recv().unwrap();
        let done = done;
        let ours = || -> transload::Result<bool> {
            let pageable = setup.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, content.len())?;
            pageable.write()?.copy_from_slice(&content);
            let there = setup.manager.allocate(setup.device, MemoryKind::Device, content.len())?;
            let pinned = setup.manager.allocate_for(setup.device, MemoryKind::Pinned, content.len())?;
            // Staged by worker threads, awaited by the reactor.
            let staged = TransferOptions::new().only(TransferMethod::HostStaged);
            let up = setup.manager.copy(&pageable, &there).options(staged).submit();
            let recorded = setup.manager.record(&[(there, pinned.clone())], &ANY)?;
            let down = recorded.replay();
            pollster::block_on(up)?;
            pollster::block_on(down)?;
            let arrived = *pinned.read()? == content[..];
            drop((pageable, pinned, recorded));
            // The free thread frees dropped memory.
            setup.manager.drain()?;
            Ok(arrived)
        };
        let outcome = ours();
        drop(done);
        capturing.join().unwrap().expect("the capture is valid to its end");
        assert!(outcome.unwrap());
    });
    drop((captured, device));
}
