//! Fills with patterns of every width and elements of every size write exactly their range.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, Operation, Pattern, RawBuffer, Reclaimer, StreamPriority, fill};
use transload_cuda_sys::{AsStream, CaptureMode};
use transload_memory::lift;
use transload_streams::{CudaGraph, CudaGraphUpdate, CudaStream};

use crate::{
    ops::in_place::{content, filled},
    stream::capture::{begin, beside_a_global_capture},
    support::{
        setup::{Setup, noise},
        shifted::shifted,
    },
};

const WIDE: u128 = 0x1021_3243_5465_7687_98A9_BACB_DCED_FE0F;

fn patterns() -> [Pattern; 5] {
    [
        Pattern::U8(WIDE as u8),
        Pattern::U16(WIDE as u16),
        Pattern::U32(WIDE as u32),
        Pattern::U64(WIDE as u64),
        Pattern::U128(WIDE),
    ]
}

fn bytes_of(pattern: Pattern, bytes: usize) -> Vec<u8> {
    pattern.repeated().into_iter().cycle().take(bytes).collect()
}

fn kinds(setup: &Setup) -> Vec<MemoryKind> {
    let kinds = [MemoryKind::Device, MemoryKind::Unified];
    kinds.into_iter().filter(|kind| setup.memory.kinds().contains(kind)).collect()
}

#[test]
fn fill_of_every_width_and_offset_touches_only_its_range() {
    /// Distance between ranges: a multiple of every width, with room for the longest range and a guard after it.
    const APART: usize = 352;
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    for kind in kinds(&setup) {
        for pattern in patterns() {
            let width = pattern.width();
            for start in 0..4 {
                let mut expected = noise(APART * 18, start as u64);
                let there = filled(&setup, &stream, kind, &expected);
                for patterns in 1..18 {
                    let from = patterns * APART + start * width;
                    let range = from..from + patterns * width;
                    drop(stream.memset_async(&there.slice(range.clone()).unwrap(), pattern));
                    expected[range.clone()].copy_from_slice(&bytes_of(pattern, range.len()));
                }
                assert!(content(&setup, &stream, &there) == expected, "{kind}, {pattern:?} from {start} on");
            }
        }
    }
    drop(stream);
    setup.finish();
}

#[test]
fn long_fill_touches_only_its_range() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    for kind in kinds(&setup) {
        for pattern in patterns() {
            let width = pattern.width();
            for (patterns, before) in [(1_023, 1), (1_025, 2), (65_537, 3), (1_000_003, 1)] {
                let (from, bytes) = (before * width, patterns * width);
                let mut expected = noise(from + bytes + 37, patterns as u64);
                let there = filled(&setup, &stream, kind, &expected);
                let range = from..from + bytes;
                drop(stream.memset_async(&there.slice(range.clone()).unwrap(), pattern));
                expected[range].copy_from_slice(&bytes_of(pattern, bytes));
                assert!(content(&setup, &stream, &there) == expected, "{kind}: {patterns} of {pattern:?}");
            }
        }
    }
    drop(stream);
    setup.finish();
}

#[test]
fn elements_of_any_size_fill_a_part_of_a_buffer() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    for kind in kinds(&setup) {
        for bytes in [1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 48, 3072] {
            let element = noise(bytes, 3);
            // Lengths that are multiples of every pattern's width, of some, and of none.
            for (count, start) in [(1, 0), (17, 16), (1_001, 8), (1_003, 3)] {
                let mut expected = noise(start + count * bytes + 33, 4);
                let there = filled(&setup, &stream, kind, &expected);
                let range = start..start + count * bytes;
                let fence = fill(&stream, &there.slice(range.clone()).unwrap(), &element).unwrap();
                expected[range].chunks_mut(bytes).for_each(|chunk| chunk.copy_from_slice(&element));
                assert!(
                    content(&setup, &stream, &there) == expected,
                    "{kind}: {count} of {bytes} bytes from {start} on"
                );
                assert!(fence.is_complete(), "later work on the stream is complete");
            }
        }
    }
    drop(stream);
    setup.finish();
}

#[test]
fn element_fill_does_not_block_and_is_ordered() {
    let setup = Setup::new();
    let (one, two) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (there, back) = (setup.device(3 * 100_001), setup.pinned(&vec![0; 3 * 100_001]));
    for round in 0..10_u8 {
        drop(two.memset_async(&there, Pattern::U8(0xEE)));
        let trace = transload_cuda_sys::trace::start();
        {
            let element = [round, 1, 2];
            drop(fill(&one, &there, &element).unwrap());
        }
        let calls = trace.calls_of_this_thread();
        assert!(calls.iter().all(|call| !call.name.ends_with("Synchronize")), "{calls:?}");
        let copied = two.copy_to_host_async(&there, &back);
        drop(one.memset_async(&there, Pattern::U64(WIDE as u64 & !0xFFFF_FFFF | 7)).wait());
        copied.wait().unwrap();
        assert!(back.read().unwrap().chunks(3).all(|chunk| *chunk == [round, 1, 2]), "round {round}");
    }
    drop((one, two, there, back));
    setup.finish();
}

#[test]
fn wide_fill_is_one_launch_and_a_repeated_byte_a_memset() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    // Large enough that a fill records an event.
    let bytes = 2 << 20;
    let there = setup.device(bytes);
    stream.memset_async(&there, Pattern::U128(WIDE)).wait().unwrap();
    for (pattern, call) in [
        (Pattern::U128(WIDE), "cuLaunchKernel"),
        (Pattern::U64(WIDE as u64), "cuLaunchKernel"),
        (Pattern::U128(0), "cuMemsetD8Async"),
        (Pattern::U64(0x0123_0123_0123_0123), "cuMemsetD16Async"),
        (Pattern::U64(0x0123_4567_0123_4567), "cuMemsetD32Async"),
        (Pattern::U32(7), "cuMemsetD32Async"),
    ] {
        let trace = transload_cuda_sys::trace::start();
        let filled = stream.memset_async(&there, pattern);
        let calls = trace.calls_of_this_thread();
        let names: Vec<_> =
            calls.iter().map(|call| call.name).filter(|name| !name.starts_with("cuCtx")).collect();
        assert_eq!(names, [call, "cuEventRecord"], "{pattern:?}");
        filled.wait().unwrap();
        let expected = bytes_of(pattern, bytes);
        assert!(content(&setup, &stream, &there) == expected, "{pattern:?}");
    }
    drop((stream, there));
    setup.finish();
}

fn through<'a>(there: &'a RawBuffer, back: &'a RawBuffer, pattern: Pattern) -> [Operation<'a>; 2] {
    [Operation::Fill { dst: there, pattern }, Operation::Copy { src: there, dst: back }]
}

#[test]
fn graph_fills_of_every_width_update_their_pattern() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let bytes = 100_000;
    let (one, two, back) = (setup.device(bytes), setup.device(bytes), setup.pinned(&vec![0; bytes]));
    let normal = StreamPriority::Normal;
    for pattern in patterns() {
        let mut graph = CudaGraph::record(&setup.device, normal, &through(&one, &back, pattern)).unwrap();
        for there in [&one, &two] {
            if there.id() == two.id() {
                let again = graph.update(&through(there, &back, pattern)).unwrap();
                if pattern.width() > 4 {
                    assert_eq!(again, CudaGraphUpdate::InPlace, "a kernel's parameters change in place");
                }
            }
            for _ in 0..2 {
                drop(stream.memset_async(there, Pattern::U8(0xEE)));
                graph.launch(&stream).unwrap();
                assert!(*back.read().unwrap() == bytes_of(pattern, bytes), "{pattern:?}");
            }
        }
    }
    drop((stream, one, two, back));
    setup.finish();
}

#[test]
fn raw_fills_of_every_width_are_captured_and_outlive_the_stream() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let bytes = 10_000;
    let back = setup.pinned(&vec![0; bytes]);
    let there = setup.device(bytes);
    let address = there.device_address().unwrap();
    for pattern in patterns() {
        let captured = CudaStream::new(&setup.device).unwrap();
        let _handle = captured.as_raw();
        let capture = begin(&captured, CaptureMode::ThreadLocal).unwrap();
        // SAFETY: the buffer outlives the graph's launch and has no other user meanwhile.
        unsafe { captured.memset_raw_async(address, pattern, bytes) }.unwrap();
        let refused = captured.memset_async(&there, pattern).wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "a fence cannot tell its end");
        let mut graph = capture.end().and_then(|graph| graph.instantiate()).map_err(lift).unwrap();
        drop(captured);
        stream.memset_async(&there, Pattern::U8(0xEE)).wait().unwrap();
        // SAFETY: the graph uses only the buffer, which has no other user until the launch completes.
        unsafe { graph.launch(&stream) }.map_err(lift).unwrap();
        stream.synchronize().unwrap();
        stream.copy_to_host_async(&there, &back).wait().unwrap();
        assert!(*back.read().unwrap() == bytes_of(pattern, bytes), "{pattern:?}");
    }
    drop((stream, there, back));
    setup.finish();
}

#[test]
fn first_wide_fill_leaves_other_captures_valid() {
    let setup = Setup::new();
    let captured = CudaStream::new(&setup.device).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(5_000);
    beside_a_global_capture(&captured, || {
        stream.memset_async(&there.slice(8..).unwrap(), Pattern::U64(WIDE as u64)).wait()?;
        fill(&stream, &there, &[1, 2, 3, 4, 5])?.wait()
    });
    assert!(content(&setup, &stream, &there).chunks(5).all(|chunk| *chunk == [1, 2, 3, 4, 5]));
    drop((stream, captured, there));
    setup.finish();
}

#[test]
fn invalid_fills_are_refused_and_write_nothing() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = filled(&setup, &stream, MemoryKind::Device, &[7; 100]);
    let part = |from, to| there.slice(from..to).unwrap();
    for (dst, pattern) in [
        (part(0, 12), Pattern::U64(1)),
        (part(4, 12), Pattern::U64(1)),
        (part(0, 24), Pattern::U128(1)),
        (part(8, 24), Pattern::U128(1)),
        (part(0, 100), Pattern::U128(0)),
    ] {
        let error = stream.memset_async(&dst, pattern).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{dst:?} {pattern:?}");
    }
    for element in [&[0; 0][..], &[0; 3], &[0; 16], &[0; 101]] {
        let error = fill(&stream, &there, element).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let (pinned, mapped) = (setup.pinned(&[7; 96]), setup.memory.allocate(MemoryKind::Mapped, 96).unwrap());
    mapped.write().unwrap().fill(7);
    for host in [&pinned, &mapped] {
        for error in [
            stream.memset_async(host, Pattern::U128(WIDE)).wait().unwrap_err(),
            fill(&stream, host, &[1, 2, 3]).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        assert_eq!(*host.read().unwrap(), [7; 96]);
        assert!(host.write().is_ok(), "a refused fill leaves no claim");
    }
    for pattern in patterns() {
        stream.memset_async(&part(48, 48), pattern).wait().unwrap();
    }
    fill(&stream, &part(5, 5), &[1, 2, 3]).unwrap().wait().unwrap();
    assert_eq!(content(&setup, &stream, &there), [7; 100]);
    drop((there, pinned, mapped, stream));
    setup.finish();
}

#[test]
fn foreign_memory_is_filled_at_any_alignment() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let reclaimer = Arc::new(Reclaimer::new());
    for pattern in patterns() {
        for shift in [1, 2, 3, 4, 7, 8] {
            for bytes in [16, 48, 4_080] {
                let mut expected = noise(5_000, bytes as u64);
                let there = filled(&setup, &stream, MemoryKind::Device, &expected);
                let foreign = shifted(&there, shift, &reclaimer);
                let part = foreign.slice(32..32 + bytes).unwrap();
                stream.memset_async(&part, pattern).wait().unwrap();
                expected[shift + 32..shift + 32 + bytes].copy_from_slice(&bytes_of(pattern, bytes));
                assert!(content(&setup, &stream, &there) == expected, "{pattern:?} from {shift} on");
            }
        }
    }
    reclaimer.drain().unwrap();
    drop((stream, reclaimer));
    setup.finish();
}
