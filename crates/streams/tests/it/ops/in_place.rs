//! Copies by a kernel: correct for every alignment and size between memory that the device can access.

use std::time::Duration;

use transload_core::{ErrorKind, Fence, MemoryKind, Operation, Pattern, Queue, RawBuffer, Timing, submit};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

/// Distance between ranges in the alignment tests: a multiple of every unit that the kernel copies by.
const APART: usize = 128;
/// Offsets around every alignment, on both sides of 16.
const OFFSETS: std::ops::Range<usize> = 0..18;
const SIZES: std::ops::RangeInclusive<usize> = 1..=70;
const POISON: u8 = 0xEE;

fn copy(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Fence {
    submit(stream, &Operation::CopyInPlace { src, dst }, Timing::Off).unwrap()
}

pub(crate) fn filled(setup: &Setup, stream: &CudaStream, kind: MemoryKind, content: &[u8]) -> RawBuffer {
    let buffer = setup.memory.allocate(kind, content.len()).unwrap();
    if kind.is_host_visible() {
        buffer.write().unwrap().copy_from_slice(content);
    } else {
        stream.copy_from_host_async(&setup.pinned(content), &buffer).wait().unwrap();
    }
    buffer
}

pub(crate) fn content(setup: &Setup, stream: &CudaStream, buffer: &RawBuffer) -> Vec<u8> {
    if buffer.place().kind.is_host_visible() {
        return buffer.read().unwrap().to_vec();
    }
    let back = setup.pinned(&vec![0; buffer.len()]);
    stream.copy_to_host_async(buffer, &back).wait().unwrap();
    let view = back.read().unwrap();
    view.to_vec()
}

fn every_alignment(from: MemoryKind, to: MemoryKind) {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let bytes = noise(APART * (SIZES.end() + 1), 5);
    let source = filled(&setup, &stream, from, &bytes);
    for src_offset in OFFSETS {
        for dst_offset in OFFSETS {
            let target = filled(&setup, &stream, to, &vec![POISON; bytes.len()]);
            let mut expected = vec![POISON; bytes.len()];
            for size in SIZES {
                let (src, dst) = (size * APART + src_offset, size * APART + dst_offset);
                copy(
                    &stream,
                    &source.slice(src..src + size).unwrap(),
                    &target.slice(dst..dst + size).unwrap(),
                );
                expected[dst..dst + size].copy_from_slice(&bytes[src..src + size]);
            }
            assert!(
                content(&setup, &stream, &target) == expected,
                "{from} + {src_offset} → {to} + {dst_offset}"
            );
        }
    }
    drop((source, stream));
    setup.finish();
}

#[test]
fn mapped_host_memory_reaches_the_device_at_every_alignment() {
    every_alignment(MemoryKind::Mapped, MemoryKind::Device);
}

#[test]
fn device_memory_reaches_mapped_host_memory_at_every_alignment() {
    every_alignment(MemoryKind::Device, MemoryKind::Mapped);
}

#[test]
fn device_memory_reaches_device_memory_at_every_alignment() {
    every_alignment(MemoryKind::Device, MemoryKind::Device);
}

#[test]
fn large_odd_in_place_copy_touches_only_its_range() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let kinds = [MemoryKind::Mapped, MemoryKind::Device, MemoryKind::Unified];
    let kinds: Vec<_> = kinds.into_iter().filter(|kind| setup.memory.kinds().contains(kind)).collect();
    for (seed, size) in [65_537, (1 << 20) + 3, (9 << 20) + 11].into_iter().enumerate() {
        let bytes = noise(size + 64, seed as u64);
        for (from, to) in kinds.iter().flat_map(|from| kinds.iter().map(move |to| (*from, *to))) {
            let source = filled(&setup, &stream, from, &bytes);
            for (src, dst) in [(0, 0), (16, 32), (7, 23), (8, 0), (4, 8), (2, 4), (0, 1)] {
                let target = filled(&setup, &stream, to, &vec![POISON; bytes.len()]);
                copy(
                    &stream,
                    &source.slice(src..src + size).unwrap(),
                    &target.slice(dst..dst + size).unwrap(),
                );
                let seen = content(&setup, &stream, &target);
                assert!(seen[dst..dst + size] == bytes[src..src + size], "{from} + {src} → {to} + {dst}");
                assert!(seen[..dst].iter().chain(&seen[dst + size..]).all(|byte| *byte == POISON));
                if size > 1 << 20 && from == to {
                    break;
                }
            }
        }
    }
    drop(stream);
    setup.finish();
}

#[test]
fn memory_not_mapped_to_the_device_is_refused() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(100);
    let mapped = filled(&setup, &stream, MemoryKind::Mapped, &[3; 100]);
    let mut slice = [9_u8; 100];
    {
        // SAFETY: the value is dropped at the end of this block and never cloned.
        let pageable = unsafe { transload_core::borrow_mut(&mut slice) };
        let pageable: &RawBuffer = &pageable;
        for (src, dst) in [(pageable, &there), (&there, pageable), (pageable, &mapped), (&mapped, pageable)] {
            let error = submit(&stream, &Operation::CopyInPlace { src, dst }, Timing::Off).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("cannot use cpu/pageable memory in place"), "{error}");
        }
    }
    assert_eq!((&*mapped.read().unwrap(), slice), (&[3; 100][..], [9; 100]));
    assert!(mapped.write().is_ok(), "a refused copy leaves no claim");
    let (short, low, high) =
        (there.slice(..99).unwrap(), there.slice(..60).unwrap(), there.slice(40..).unwrap());
    for (src, dst, kind) in [(&mapped, &short, ErrorKind::InvalidArgument), (&low, &high, ErrorKind::Overlap)]
    {
        let error = submit(&stream, &Operation::CopyInPlace { src, dst }, Timing::Off).unwrap_err();
        assert_eq!(error.kind(), kind);
    }
}

#[test]
fn in_place_copy_is_ordered_with_other_streams() {
    let setup = Setup::new();
    let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
    let (there, again) = (setup.device(300_001), setup.device(300_001));
    let mapped = filled(&setup, &streams[0], MemoryKind::Mapped, &vec![0; 300_001]);
    for round in 0..20 {
        drop(streams[0].memset_async(&there, Pattern::U8(round)));
        copy(&streams[1], &there, &mapped);
        drop(streams[2].memset_async(&there, Pattern::U8(0xFF)));
        copy(&streams[0], &mapped, &again);
        drop(streams[1].memset_async(&there, Pattern::U8(0xFE)));
        assert!(mapped.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
        let seen = content(&setup, &streams[2], &again);
        assert!(seen.iter().all(|byte| *byte == round), "round {round}");
    }
    drop((streams, there, again, mapped));
    setup.finish();
}

#[test]
fn in_place_copy_is_one_launch_and_one_event() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let mapped = filled(&setup, &stream, MemoryKind::Mapped, &[1; 5000]);
    let there = setup.device(5000);
    copy(&stream, &mapped, &there).wait().unwrap();
    let trace = transload_cuda_sys::trace::start();
    let fence = copy(&stream, &mapped, &there);
    let calls: Vec<_> =
        trace.calls_of_this_thread().into_iter().filter(|call| !call.name.starts_with("cuCtx")).collect();
    let handle = transload_cuda_sys::AsStream::as_raw(&stream).addr() as u64;
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!((calls[0].name, calls[0].arguments[8]), ("cuLaunchKernel", handle));
    assert_eq!((calls[1].name, calls[1].arguments[1]), ("cuEventRecord", handle));
    fence.wait().unwrap();
}

#[test]
fn streams_of_a_device_share_one_loaded_module() {
    let setup = Setup::new();
    let trace = transload_cuda_sys::trace::start();
    let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
    let (one, two) = (setup.device(64), setup.device(64));
    for stream in &streams {
        copy(stream, &one, &two).wait().unwrap();
    }
    drop((streams, one, two));
    let calls = trace.calls_of_this_thread();
    let count = |name: &str| calls.iter().filter(|call| call.name == name).count();
    assert!(count("cuModuleLoadDataEx") <= 1, "other tests may share the real device's context and module");
    if setup.test.is_simulated() {
        assert_eq!((count("cuModuleLoadDataEx"), count("cuModuleUnload")), (1, 1));
    }
    setup.finish();
}

#[test]
fn occupying_kernel_takes_its_time() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let end = stream.occupy(Duration::from_micros(300)).unwrap();
    end.wait().unwrap();
    let took = end.timeline().take_duration(end.point()).unwrap().unwrap();
    // The device's timer advances by up to a microsecond.
    assert!(took >= Duration::from_micros(295), "{took:?}");
    drop((end, stream));
    setup.finish();
}

#[test]
fn built_in_kernels_target_an_old_ptx_version() {
    let text = concat!(
        include_str!("../../../src/submit/kernels/copy.ptx"),
        include_str!("../../../src/submit/kernels/copy_list.ptx"),
        include_str!("../../../src/submit/kernels/fill.ptx"),
        include_str!("../../../src/submit/kernels/cast.ptx"),
        include_str!("../../../src/submit/kernels/occupy.ptx")
    );
    let entries =
        ["transload_copy", "transload_copy_list", "transload_fill", "transload_cast", "transload_occupy"];
    assert_eq!(text.matches(".entry").count(), entries.len());
    for entry in entries {
        assert!(text.contains(&format!(".visible .entry {entry}(")), "{entry}");
    }
    assert!(text.contains(".version 6.0\n.target sm_50\n"), "old drivers take an old version only");
    assert_eq!(text.matches(".version").count(), 1, "a module has one");
    assert!(text.is_ascii() && !text.contains('\0'), "the driver's compiler takes no other letters");
}
