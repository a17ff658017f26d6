//! Every operation puts exactly its bytes in place, at any size and offset, on one thread or several.

use proptest::prelude::*;
use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, ErrorKind, MemoryKind, Operation, Pattern, Pitched, Timing, submit};

use crate::{allocate, backend, lease, noise};

const SIZES: [usize; 10] = [0, 1, 3, 255, 4097, 65_535, 65_536, 65_537, (1 << 20) + 3, (5 << 20) + 7];

#[test]
fn memory_is_zeroed_and_aligned_by_its_size() {
    let backend = backend(1, usize::MAX);
    for (bytes, alignment) in [(1, 64), (65_535, 64), (65_536, 4096), (4 << 20, 4096), ((5 << 20) + 3, 4096)]
    {
        let buffer = allocate(&backend, bytes);
        let address = buffer.host_address().unwrap().as_ptr().addr();
        assert!(address.is_multiple_of(alignment), "{bytes}");
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn oversized_allocations_return_errors() {
    for bytes in [usize::MAX, isize::MAX as usize, usize::MAX - (2 << 20) + 2, 1 << 46] {
        let error = backend(1, usize::MAX).allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{bytes}");
    }
}

fn run(backend: &CpuBackend, operation: &Operation<'_>) {
    submit(&*lease(backend), operation, Timing::Off).unwrap().wait().unwrap();
}

fn copies(backend: &CpuBackend) {
    SIZES.into_iter().for_each(|bytes| copies_of(backend, bytes));
}

fn copies_of(backend: &CpuBackend, bytes: usize) {
    for (from, to) in [(0, 0), (1, 0), (0, 3), (13, 7)] {
        let content = noise(bytes as u64, bytes + 16);
        let before = noise(99, bytes + 16);
        let (src, dst) = (backend.wrap_vec(content.clone()), backend.wrap_vec(before.clone()));
        let (from_slice, to_slice) =
            (src.slice(from..from + bytes).unwrap(), dst.slice(to..to + bytes).unwrap());
        run(backend, &Operation::Copy { src: &from_slice, dst: &to_slice });
        let mut expected = before;
        expected[to..to + bytes].copy_from_slice(&content[from..from + bytes]);
        assert!(*dst.read().unwrap() == expected[..], "{bytes} bytes from {from} to {to}");
        assert!(*src.read().unwrap() == content[..]);
    }
}

fn fills(backend: &CpuBackend) {
    let patterns = [
        Pattern::U8(0xA5),
        Pattern::U16(0x1234),
        Pattern::U32(0x89AB_CDEF),
        Pattern::U64(0x0123_4567_89AB_CDEF),
        Pattern::U128(0x0123_4567_89AB_CDEF_0F1E_2D3C_4B5A_6978),
    ];
    for bytes in SIZES {
        for pattern in patterns {
            let width = pattern.width();
            let bytes = bytes.next_multiple_of(width);
            let unit = &pattern.repeated()[..width];
            // Fills begin at multiples of their pattern.
            let before = noise(5, bytes + 2 * width + 5);
            let buffer = backend.wrap_vec(before.clone());
            run(backend, &Operation::Fill { dst: &buffer.slice(width..width + bytes).unwrap(), pattern });
            let mut expected = before;
            expected[width..width + bytes].chunks_mut(width).for_each(|chunk| chunk.copy_from_slice(unit));
            assert!(*buffer.read().unwrap() == expected[..], "{bytes} bytes of {pattern:?}");
        }
    }
}

fn rows(backend: &CpuBackend) {
    for (width, height, src_pitch, dst_pitch) in
        [(1, 1, 1, 1), (7, 13, 11, 7), (4096, 33, 4099, 5000), (100_001, 41, 100_003, 100_001)]
    {
        let content = noise(1, src_pitch * height);
        let before = noise(2, dst_pitch * height + 1);
        let (src, dst) = (backend.wrap_vec(content.clone()), backend.wrap_vec(before.clone()));
        let rows = Pitched::new(width, height, src_pitch, dst_pitch);
        run(backend, &Operation::CopyPitched { src: &src, dst: &dst.slice(1..).unwrap(), rows });
        let mut expected = before;
        for row in 0..height {
            expected[1 + row * dst_pitch..][..width].copy_from_slice(&content[row * src_pitch..][..width]);
        }
        assert!(*dst.read().unwrap() == expected[..], "{rows:?}");
    }
}

fn batches(backend: &CpuBackend) {
    for (count, bytes) in [(0, 1), (1, 5), (7, 1000), (64, 4096), (9, 700_001)] {
        let src = backend.wrap_vec(noise(3, count * bytes));
        let dst = backend.wrap_vec(vec![0_u8; count * bytes]);
        let part = |buffer: &transload_core::RawBuffer, index: usize| {
            buffer.slice(index * bytes..(index + 1) * bytes).unwrap()
        };
        // Reversed: a gather.
        let pairs: Vec<_> =
            (0..count).map(|index| (part(&src, count - 1 - index), part(&dst, index))).collect();
        run(backend, &Operation::CopyBatch { pairs: &pairs });
        let expected: Vec<u8> = src.read().unwrap().chunks(bytes).rev().flatten().copied().collect();
        assert!(*dst.read().unwrap() == expected[..], "{count} × {bytes}");
    }
}

#[test]
fn every_operation_on_one_worker_equals_memcpy() {
    let backend = backend(1, usize::MAX);
    copies(&backend);
    fills(&backend);
    rows(&backend);
    batches(&backend);
}

#[test]
fn every_operation_shared_by_several_workers_equals_memcpy() {
    let backend = backend(4, 1 << 20);
    copies(&backend);
    fills(&backend);
    rows(&backend);
    batches(&backend);
}

#[test]
fn every_operation_with_streaming_stores_equals_memcpy() {
    for (workers, parallel_from) in [(1, usize::MAX), (4, 1 << 20)] {
        let builder = CpuBackend::builder().workers(workers).parallel_from(parallel_from);
        let backend = builder.stream_from(1).build().unwrap();
        copies(&backend);
        rows(&backend);
        batches(&backend);
    }
}

#[test]
fn copies_of_about_the_size_that_streams_equal_memcpy() {
    let from = (3 << 20) + 1;
    let backend = CpuBackend::builder().workers(2).stream_from(from).build().unwrap();
    for bytes in [from - 1, from, from + 1] {
        copies_of(&backend, bytes);
    }
}

#[test]
fn streaming_copy_between_buffers_of_common_bytes_equals_memmove() {
    let backend = CpuBackend::builder().workers(1).parallel_from(usize::MAX).stream_from(1).build().unwrap();
    for (from, to) in [(0, 1), (1, 0), (0, 4096), (4096, 0)] {
        let mut memory = noise(8, (3 << 20) + 4096);
        let mut expected = memory.clone();
        expected.copy_within(from..from + (3 << 20), to);
        let wrap = |at: usize, memory: &mut Vec<u8>| {
            let address = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
            // SAFETY: within the vector, which outlives both buffers; nothing else uses it meanwhile.
            unsafe { backend.wrap_raw((), address.add(at), 3 << 20) }
        };
        let (src, dst) = (wrap(from, &mut memory), wrap(to, &mut memory));
        run(&backend, &Operation::Copy { src: &src, dst: &dst });
        drop((src, dst));
        backend.drain().unwrap();
        assert!(memory == expected, "{from} → {to}");
    }
}

#[test]
fn several_large_copies_at_once_share_the_workers() {
    let backend = backend(3, 1 << 20);
    let copies: Vec<_> = (0..6_u64)
        .map(|seed| {
            let content = noise(seed, (6 << 20) + seed as usize);
            let src = backend.wrap_readonly(content.clone());
            let dst = allocate(&backend, content.len());
            let queue = lease(&backend);
            submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
            (content, dst, queue)
        })
        .collect();
    for (content, dst, _queue) in copies {
        assert!(*dst.read().unwrap() == content[..]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_copy_equals_memcpy(bytes in 0_usize..3_000_000, from in 0_usize..70, to in 0_usize..70, seed: u64) {
        let backend = backend(2, 600_000);
        let content = noise(seed, bytes + from);
        let src = backend.wrap_readonly(content.clone());
        let dst = allocate(&backend, bytes + to + 1);
        let range = to..to + bytes;
        run(&backend, &Operation::Copy { src: &src.slice(from..).unwrap(), dst: &dst.slice(range.clone()).unwrap() });
        let mut expected = vec![0; bytes + to + 1];
        expected[range].copy_from_slice(&content[from..]);
        prop_assert!(*dst.read().unwrap() == expected[..]);
    }
}
