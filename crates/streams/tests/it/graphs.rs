//! Each launch of a graph executes its recording, ordered like other work, and a graph owns what it uses.

use transload_core::{
    Access, Error, ErrorKind, Fence, MemoryKind, Operation, Pattern, RawBuffer, Recording, StreamPriority,
    Timing, submit,
};
use transload_cuda_sys::{Context, check, ffi};
use transload_streams::{CudaGraph, CudaGraphUpdate, CudaStream};

use crate::support::setup::{Setup, noise};

const NORMAL: StreamPriority = StreamPriority::Normal;
const BYTES: usize = 200_000;

fn record(setup: &Setup, operations: &[Operation<'_>]) -> CudaGraph {
    CudaGraph::record(&setup.device, NORMAL, operations).unwrap()
}

fn stream(setup: &Setup) -> CudaStream {
    CudaStream::new(&setup.device).unwrap()
}

#[test]
fn launch_copies_the_sources_current_bytes() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let (host, there, back) =
        (setup.pinned(&noise(BYTES, 0)), setup.device(BYTES), setup.pinned(&[7; BYTES]));
    let graph = record(
        &setup,
        &[Operation::Copy { src: &host, dst: &there }, Operation::Copy { src: &there, dst: &back }],
    );
    assert_eq!(graph.nodes(), 2);
    assert!(back.try_read().unwrap().iter().all(|byte| *byte == 7), "recording claims and moves nothing");
    for round in 0..10 {
        let content = noise(BYTES, round);
        host.write().unwrap().copy_from_slice(&content);
        let fence = graph.launch(&stream).unwrap();
        if round % 2 == 0 {
            fence.wait().unwrap();
        }
        // A view waits for the launch.
        assert!(*back.read().unwrap() == content[..], "round {round}");
    }
    drop((graph, host, there, back, stream));
    setup.finish();
}

#[test]
fn conflicting_operations_are_ordered_others_are_parallel() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let sources: Vec<_> = (0..6).map(|seed| setup.pinned(&noise(BYTES, seed))).collect();
    let there: Vec<_> = (0..6).map(|_| setup.device(BYTES)).collect();
    let (sum, back) = (setup.device(6 * BYTES), setup.pinned(&vec![0; 6 * BYTES]));
    let parts: Vec<_> = (0..6).map(|part| sum.slice(part * BYTES..(part + 1) * BYTES).unwrap()).collect();
    let mut operations = vec![Operation::Fill { dst: &sum, pattern: Pattern::U8(0xEE) }];
    operations.extend(sources.iter().zip(&there).map(|(src, dst)| Operation::Copy { src, dst }));
    operations.extend(there.iter().zip(&parts).map(|(src, dst)| Operation::Copy { src, dst }));
    operations.push(Operation::Copy { src: &sum, dst: &back });
    let graph = record(&setup, &operations);
    assert_eq!(graph.nodes(), 14);
    for _ in 0..5 {
        graph.launch(&stream).unwrap().wait().unwrap();
        let seen = back.read().unwrap();
        for (seed, part) in seen.chunks(BYTES).enumerate() {
            assert!(*part == noise(BYTES, seed as u64)[..], "part {seed}");
        }
    }
    drop((graph, stream));
    drop((sources, there, parts, sum, back));
    setup.finish();
}

#[test]
fn launch_is_ordered_with_work_of_other_streams() {
    let setup = Setup::new();
    let (one, two, three) = (stream(&setup), stream(&setup), stream(&setup));
    let (there, copy, back) = (setup.device(BYTES), setup.device(BYTES), setup.pinned(&[0; BYTES]));
    let graph = record(&setup, &[Operation::Copy { src: &there, dst: &copy }]);
    for round in 0..20 {
        drop(one.memset_async(&there, Pattern::U8(round)));
        graph.launch(&two).unwrap();
        drop(three.memset_async(&there, Pattern::U8(0xFF)));
        let down = one.copy_to_host_async(&copy, &back);
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
        down.wait().unwrap();
    }
    drop((graph, one, two, three));
    drop((there, copy, back));
    setup.finish();
}

#[test]
fn launches_of_one_graph_on_two_streams_run_one_after_the_other() {
    let setup = Setup::new();
    let (one, two) = (stream(&setup), stream(&setup));
    let (there, back) = (setup.device(BYTES), setup.pinned(&[0; BYTES]));
    let graph = record(
        &setup,
        &[
            Operation::Fill { dst: &there, pattern: Pattern::U8(3) },
            Operation::Copy { src: &there, dst: &back },
        ],
    );
    let fences: Vec<Fence> = (0..20).map(|turn| graph.launch([&one, &two][turn % 2]).unwrap()).collect();
    fences.iter().for_each(|fence| fence.wait().unwrap());
    assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
    drop((fences, graph, one, two, there, back));
    setup.finish();
}

#[test]
fn threads_may_launch_one_graph_at_once() {
    let setup = Setup::new();
    let (there, back) = (setup.device(BYTES), setup.pinned(&[0; BYTES]));
    let graph = record(
        &setup,
        &[
            Operation::Fill { dst: &there, pattern: Pattern::U16(0x0505) },
            Operation::Copy { src: &there, dst: &back },
        ],
    );
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = stream(&setup);
                for _ in 0..10 {
                    graph.launch(&stream).unwrap();
                }
                stream.synchronize().unwrap();
            });
        }
    });
    assert!(back.read().unwrap().iter().all(|byte| *byte == 5));
    drop((graph, there, back));
    setup.finish();
}

#[test]
fn graph_dropped_in_flight_keeps_its_buffers_alive() {
    let setup = Setup::new();
    let stream = stream(&setup);
    for round in 0..10 {
        let content = noise(BYTES, round);
        let back = setup.pinned(&[0; BYTES]);
        let fence = {
            let (host, there) = (setup.pinned(&content), setup.device(BYTES));
            let graph = record(
                &setup,
                &[Operation::Copy { src: &host, dst: &there }, Operation::Copy { src: &there, dst: &back }],
            );
            graph.launch(&stream).unwrap()
        };
        assert!(*back.read().unwrap() == content[..], "round {round}");
        fence.wait().unwrap();
    }
    drop(stream);
    setup.finish();
}

#[test]
fn update_replaces_buffers_in_place_or_instantiates_again() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let (one, two) = (setup.pinned(&noise(BYTES, 1)), setup.pinned(&noise(BYTES, 2)));
    let (there, back) = (setup.device(BYTES), setup.pinned(&[0; BYTES]));
    let copies =
        |host| [Operation::Copy { src: host, dst: &there }, Operation::Copy { src: &there, dst: &back }];
    let mut graph = record(&setup, &copies(&one));
    graph.launch(&stream).unwrap();
    // The launch in flight still uses the old graph.
    assert_eq!(graph.update(&copies(&two)).unwrap(), CudaGraphUpdate::InPlace);
    assert!(*back.read().unwrap() == noise(BYTES, 1)[..]);
    graph.launch(&stream).unwrap();
    assert!(*back.read().unwrap() == noise(BYTES, 2)[..]);
    assert!(graph.uses().iter().all(|(buffer, _)| buffer.id() != one.id()), "the old source is free");
    let (from, to) = (two.slice(..100).unwrap(), there.slice(..100).unwrap());
    let longer = [
        Operation::Fill { dst: &there, pattern: Pattern::U8(8) },
        Operation::Copy { src: &from, dst: &to },
        Operation::Copy { src: &there, dst: &back },
    ];
    let rebuilt = graph.update(&longer).unwrap();
    assert!(matches!(rebuilt, CudaGraphUpdate::Rebuilt { .. }), "{rebuilt:?}");
    assert_eq!(graph.nodes(), 3);
    graph.launch(&stream).unwrap();
    let expected: Vec<u8> = noise(BYTES, 2)[..100].iter().copied().chain(vec![8; BYTES - 100]).collect();
    assert!(*back.read().unwrap() == expected[..]);
    // A refused update leaves the graph as it was.
    assert_eq!(graph.update(&[]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    graph.launch(&stream).unwrap().wait().unwrap();
    drop((graph, stream));
    drop((one, two, there, back, from, to));
    setup.finish();
}

#[test]
fn every_recorded_copy_and_fill_writes_its_bytes() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let (host, there, back) = (setup.pinned(&noise(6000, 1)), setup.device(6000), setup.pinned(&[0; 6000]));
    let (mapped, words) = (setup.memory.allocate(MemoryKind::Mapped, 1000).unwrap(), setup.device(1000));
    let unified = setup.memory.allocate(MemoryKind::Unified, 400).ok();
    mapped.write().unwrap().fill(1);
    let rows = transload_core::Pitched::new(10, 20, 30, 20);
    let part =
        |buffer: &transload_core::RawBuffer, range: std::ops::Range<usize>| buffer.slice(range).unwrap();
    let pairs = [
        (part(&host, 2000..2100), part(&there, 2000..2100)),
        (part(&host, 2500..2600), part(&there, 2500..2600)),
    ];
    let mut operations = vec![
        Operation::Fill { dst: &there, pattern: Pattern::U32(0xAABB_CCDD) },
        Operation::CopyBatch { pairs: &pairs },
    ];
    let (rows_src, rows_dst) = (part(&host, 0..600), part(&there, 0..600));
    operations.push(Operation::CopyPitched { src: &rows_src, dst: &rows_dst, rows });
    operations.push(Operation::Fill { dst: &words, pattern: Pattern::U16(0x0102) });
    operations.push(Operation::CopyInPlace { src: &words, dst: &mapped });
    if let Some(unified) = &unified {
        operations.push(Operation::Fill { dst: unified, pattern: Pattern::U8(4) });
    }
    operations.push(Operation::Copy { src: &there, dst: &back });
    let graph = record(&setup, &operations);
    for _ in 0..3 {
        back.write().unwrap().fill(0);
        mapped.write().unwrap().fill(0);
        graph.launch(&stream).unwrap();
        let source = noise(6000, 1);
        let mut expected: Vec<u8> = 0xAABB_CCDD_u32.to_ne_bytes().repeat(1500);
        for range in [2000..2100, 2500..2600] {
            expected[range.clone()].copy_from_slice(&source[range]);
        }
        for row in 0..20 {
            expected[row * 20..row * 20 + 10].copy_from_slice(&source[row * 30..row * 30 + 10]);
        }
        assert!(*back.read().unwrap() == expected[..]);
        assert!(*mapped.read().unwrap() == 0x0102_u16.to_ne_bytes().repeat(500)[..]);
        if let Some(unified) = &unified {
            assert!(unified.read().unwrap().iter().all(|byte| *byte == 4));
        }
    }
    drop((graph, stream));
    drop((host, there, back, mapped, words, unified, pairs, rows_src, rows_dst));
    setup.finish();
}

#[test]
fn unrecordable_operations_are_refused_before_capture() {
    let setup = Setup::new();
    let (unified, there) = (setup.memory.allocate(MemoryKind::Unified, 64).ok(), setup.device(64));
    let refused = |operations: &[Operation<'_>]| {
        let error = CudaGraph::record(&setup.device, NORMAL, operations).unwrap_err();
        (error.kind(), error.to_string())
    };
    let bytes = [1_u8; 64];
    // SAFETY: it is dropped below, and the call is refused before it clones it.
    let host = unsafe { transload_core::borrow(&bytes) };
    let (kind, text) = refused(&[
        Operation::Fill { dst: &there, pattern: Pattern::U8(1) },
        Operation::Copy { src: &host, dst: &there },
    ]);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("operation 1") && text.contains("pinned"), "{text}");
    if let Some(unified) = &unified {
        let (kind, text) = refused(&[Operation::Prefetch { buffer: unified, to: setup.device.id() }]);
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(text.contains("prefetch"), "{text}");
    }
    let pairs = [(host.clone(), there.clone())];
    assert_eq!(refused(&[Operation::CopyBatchInPlace { pairs: &pairs }]).0, ErrorKind::Unsupported);
    let inner = record(&setup, &[Operation::Fill { dst: &there, pattern: Pattern::U8(1) }]);
    let (kind, text) = refused(&[Operation::Replay { recorded: &inner }]);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("recording itself"), "{text}");
    assert_eq!(refused(&[]).0, ErrorKind::InvalidArgument);
    let short = there.slice(..10).unwrap();
    assert_eq!(refused(&[Operation::Copy { src: &there, dst: &short }]).0, ErrorKind::InvalidArgument);
    drop((inner, pairs, there, short, unified, host));
    setup.finish();
}

#[test]
fn recorded_batch_in_place_is_one_ordered_launch() {
    const COUNT: usize = 400;
    let setup = Setup::new();
    let (one, two) = (stream(&setup), stream(&setup));
    let (host, there, back) =
        (setup.pinned(&vec![0; COUNT * 100]), setup.device(COUNT * 100), setup.pinned(&vec![0; COUNT * 100]));
    let piece = |of: &RawBuffer, index: usize| of.slice(index * 100..index * 100 + 99).unwrap();
    let pairs: Vec<_> =
        (0..COUNT).map(|index| (piece(&host, index), piece(&there, COUNT - 1 - index))).collect();
    let graph = record(
        &setup,
        &[
            Operation::Fill { dst: &there, pattern: Pattern::U8(7) },
            Operation::CopyBatchInPlace { pairs: &pairs },
            Operation::CopyBatchInPlace { pairs: &[] },
        ],
    );
    assert_eq!(graph.nodes(), 2);
    for round in 0..4 {
        let content = noise(COUNT * 100, round);
        host.write().unwrap().copy_from_slice(&content);
        graph.launch(&one).unwrap();
        submit(&two, &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
        submit(&two, &Operation::Fill { dst: &there, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
        for (index, piece) in back.read().unwrap().chunks(100).enumerate() {
            let from = (COUNT - 1 - index) * 100;
            assert!(
                piece[..99] == content[from..from + 99] && piece[99] == 7,
                "piece {index}, round {round}"
            );
        }
    }
    drop((graph, pairs, host, there, back, one, two));
    setup.finish();
}

#[test]
fn host_view_and_launch_exclude_each_other() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let (host, there) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
    let graph = record(&setup, &[Operation::Copy { src: &host, dst: &there }]);
    let view = host.write().unwrap();
    assert_eq!(graph.launch(&stream).unwrap_err().kind(), ErrorKind::Busy);
    drop(view);
    let reading = host.read().unwrap();
    graph.launch(&stream).unwrap().wait().unwrap();
    drop(reading);
    drop((graph, stream, host, there));
    setup.finish();
}

#[test]
fn a_launch_is_measured_like_any_operation() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let (host, there) = (setup.pinned(&vec![1; 8 << 20]), setup.device(8 << 20));
    let graph = record(&setup, &[Operation::Copy { src: &host, dst: &there }]);
    let fence = submit(&stream, &Operation::Replay { recorded: &graph }, Timing::Measured).unwrap();
    fence.wait().unwrap();
    let duration = fence.timeline().take_duration(fence.point()).unwrap();
    assert!(duration.is_some_and(|duration| !duration.is_zero()), "{duration:?}");
    drop((fence, graph, stream, host, there));
    setup.finish();
}

#[test]
fn recording_is_refused_on_another_devices_stream() {
    let Some(devices) = transload_cuda_sim::harness::devices(2) else { return };
    let device = |index: usize| transload_memory::CudaDevice::new(devices[index].ordinal()).unwrap();
    let (near, far) = (device(0), device(1));
    let memory = transload_memory::CudaMemoryManager::new(&near).unwrap();
    let there = memory.allocate(MemoryKind::Device, 64).unwrap();
    let operation = Operation::Fill { dst: &there, pattern: Pattern::U8(1) };
    let graph = CudaGraph::record(&near, NORMAL, &[operation]).unwrap();
    let stream = CudaStream::new(&far).unwrap();
    let error = graph.launch(&stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("its own recordings"), "{error}");
    let error = CudaGraph::record(&far, NORMAL, &[operation]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

fn fill_raw(
    context: &Context,
    address: u64,
    value: u8,
    raw: transload_cuda_sys::RawStream,
) -> Result<(), Error> {
    let _bound = context.enter().map_err(transload_memory::lift)?;
    // SAFETY: the memory is live and 64 bytes long.
    check("cuMemsetD8Async", unsafe { ffi::cuMemsetD8Async(address, value, 64, raw) })
        .map_err(transload_memory::lift)
}

#[test]
fn raw_capture_is_ordered_by_its_declared_uses() {
    let setup = Setup::new();
    let stream = stream(&setup);
    let (there, back) = (setup.device(64), setup.pinned(&[0; 64]));
    let context = setup.device.context().unwrap();
    let address = there.device_address().unwrap();
    // SAFETY: the work touches only the declared buffer.
    let graph = unsafe {
        CudaGraph::capture_raw(&setup.device, NORMAL, &[(&there, Access::Write)], |raw| {
            fill_raw(context, address, 6, raw)
        })
    }
    .unwrap();
    drop(stream.memset_async(&there, Pattern::U8(9)));
    graph.launch(&stream).unwrap();
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 6));
    drop((graph, stream, there, back));
    setup.finish();
}

#[test]
fn failed_raw_capture_returns_an_error_and_leaks_nothing() {
    let setup = Setup::new();
    let (there, stream) = (setup.device(64), stream(&setup));
    let context = setup.device.context().unwrap();
    let address = there.device_address().unwrap();
    let uses = [(&there, Access::Write)];
    let allocating = |raw| {
        fill_raw(context, address, 1, raw)?;
        let _bound = context.enter().map_err(transload_memory::lift)?;
        // Thread-local mode, so that this thread cannot invalidate another test's global capture.
        let (mut mode, mut out) = (1, 0);
        // SAFETY: the pointers are valid; the capture forbids the allocation; the mode is restored.
        let code = unsafe {
            ffi::cuThreadExchangeStreamCaptureMode(&mut mode);
            let code = ffi::cuMemAlloc_v2(&mut out, 64);
            ffi::cuThreadExchangeStreamCaptureMode(&mut mode);
            code
        };
        assert_eq!(code, 900);
        Ok(())
    };
    // SAFETY: the work touches only the declared buffer.
    let outcome = unsafe { CudaGraph::capture_raw(&setup.device, NORMAL, &uses, allocating) };
    let error = outcome.unwrap_err();
    assert!(error.kind() == ErrorKind::Device && error.to_string().contains("901"), "{error}");
    let refusing = |_| Err(Error::new(ErrorKind::Interrupted, "changed its mind"));
    // SAFETY: nothing is enqueued.
    let outcome = unsafe { CudaGraph::capture_raw(&setup.device, NORMAL, &uses, refusing) };
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Interrupted);
    let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: nothing is enqueued.
        unsafe { CudaGraph::capture_raw(&setup.device, NORMAL, &uses, |_| panic!("on purpose")) }
    }));
    assert!(panicking.is_err());
    // The capture has ended: this thread may allocate, and the stream works.
    drop(setup.device(64));
    stream.memset_async(&there, Pattern::U8(1)).wait().unwrap();
    drop((there, stream));
    setup.finish();
}
