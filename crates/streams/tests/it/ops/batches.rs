//! Batches: neighbours joined, many copies by one driver call, or by one kernel over a list.

use std::{ptr::NonNull, sync::Arc};

use transload_core::{
    ErrorKind, HostBytes, MemoryKind, Operation, RawBuffer, Reclaimer, Timing, Turns, submit, try_submit,
};
use transload_cuda_sys::{Driver, trace};
use transload_memory::{CudaDevice, CudaMemoryManager, PinnedLimit};
use transload_streams::CudaStream;

use super::in_place::{content, filled};
use crate::support::{
    gate::Gate,
    setup::{Setup, noise},
};

const POISON: u8 = 0xEE;

type Pairs = Vec<(RawBuffer, RawBuffer)>;

/// `count` pieces of `bytes` bytes each, forwards in the source and backwards in the destination, with a byte between.
fn scattered(src: &RawBuffer, dst: &RawBuffer, count: usize, bytes: usize) -> Pairs {
    let part = |of: &RawBuffer, index: usize| {
        let start = index * (bytes + 1);
        of.slice(start..start + bytes).unwrap()
    };
    (0..count).map(|index| (part(src, index), part(dst, count - 1 - index))).collect()
}

/// The destination's content after a batch of [`scattered`] pieces.
fn expected(sent: &[u8], count: usize, bytes: usize) -> Vec<u8> {
    let mut expected = vec![POISON; count * (bytes + 1)];
    for index in 0..count {
        let (from, to) = (index * (bytes + 1), (count - 1 - index) * (bytes + 1));
        expected[to..to + bytes].copy_from_slice(&sent[from..from + bytes]);
    }
    expected
}

/// Names of this thread's driver calls, without those of contexts and capture modes.
fn calls_of(submitted: impl FnOnce()) -> Vec<&'static str> {
    let trace = trace::start();
    submitted();
    let calls = trace.calls_of_this_thread();
    let is_work = |name: &&str| !name.starts_with("cuCtx") && !name.starts_with("cuThread");
    calls.into_iter().map(|call| call.name).filter(is_work).collect()
}

fn run(stream: &CudaStream, operation: &Operation<'_>) {
    submit(stream, operation, Timing::Off).unwrap().wait().unwrap();
}

#[test]
fn batches_of_every_number_arrive_between_all_memory() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let kinds = [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified];
    let hosts = kinds.into_iter().filter(|kind| setup.memory.kinds().contains(kind));
    let paths: Vec<_> = hosts
        .flat_map(|host| [(host, MemoryKind::Device), (MemoryKind::Device, host)])
        .chain([(MemoryKind::Device, MemoryKind::Device)])
        .collect();
    for (from, to) in paths {
        for (count, bytes) in [(3, 100), (4, 100), (1500, 3), (40, 5000)] {
            let sent = noise(count * (bytes + 1), count as u64);
            let source = filled(&setup, &stream, from, &sent);
            let target = filled(&setup, &stream, to, &vec![POISON; sent.len()]);
            let pairs = scattered(&source, &target, count, bytes);
            run(&stream, &Operation::CopyBatch { pairs: &pairs });
            let seen = content(&setup, &stream, &target);
            assert!(seen == expected(&sent, count, bytes), "{count} × {bytes} {from} → {to}");
        }
    }
    drop(stream);
    setup.finish();
}

#[test]
fn neighbours_are_one_copy_and_gaps_are_not_touched() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let sent = noise(100_000, 3);
    let (source, target) = (setup.pinned(&sent), setup.device(100_000));
    let part = |of: &RawBuffer, from: usize, to: usize| of.slice(from * 1000..to * 1000).unwrap();
    // The second joins the first, though an empty pair is between; the third follows in the source only.
    let bounds = [(0, 2, 0), (2, 2, 2), (2, 50, 2), (50, 60, 51), (60, 99, 61)];
    let pairs: Pairs = bounds
        .iter()
        .map(|(from, to, at)| (part(&source, *from, *to), part(&target, *at, at + to - from)))
        .collect();
    run(&stream, &Operation::Fill { dst: &target, pattern: transload_core::Pattern::U8(POISON) });
    let calls = calls_of(|| run(&stream, &Operation::CopyBatch { pairs: &pairs }));
    assert_eq!(calls.iter().filter(|name| **name == "cuMemcpyHtoDAsync_v2").count(), 2, "{calls:?}");
    let mut all = sent[..50_000].to_vec();
    all.extend([POISON; 1000].iter().chain(&sent[50_000..]));
    all.truncate(100_000);
    assert!(content(&setup, &stream, &target) == all);
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn many_copies_are_one_driver_call() {
    let setup = Setup::new();
    if !Driver::get().unwrap().has(c"cuMemcpyBatchAsync_v2") {
        println!("skipped: the driver has no call for many copies");
        return;
    }
    let stream = CudaStream::new(&setup.device).unwrap();
    let (source, target) = (setup.pinned(&noise(4040, 1)), setup.device(4040));
    let pairs = scattered(&source, &target, 40, 100);
    run(&stream, &Operation::CopyBatch { pairs: &pairs });
    let mut fence = None;
    let calls = calls_of(|| {
        fence = Some(submit(&stream, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap());
    });
    assert_eq!(calls, ["cuMemcpyBatchAsync_v2", "cuEventRecord"]);
    fence.unwrap().wait().unwrap();
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn list_kernel_copies_every_alignment_and_size_at_once() {
    /// Around what a piece has of bytes before and after its units of 16 bytes, a row of a warp, and four of them.
    const SIZES: [usize; 13] = [0, 1, 2, 15, 16, 17, 33, 62, 70, 511, 575, 2_075, 4_093];
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let places: Vec<(usize, usize, usize)> = (0..18)
        .flat_map(|src| (0..18).flat_map(move |dst| SIZES.map(|size| (src, dst, size))))
        .scan(0, |next, (src, dst, size)| {
            let start = *next;
            *next += (size + 18).next_multiple_of(16);
            Some((start + src, start + dst, size))
        })
        .collect();
    let sent = noise(places.last().map_or(0, |(src, dst, size)| src.max(dst) + size + 16), 6);
    let kinds = [MemoryKind::Mapped, MemoryKind::Pinned, MemoryKind::Device];
    for (from, to) in kinds.into_iter().flat_map(|from| kinds.map(|to| (from, to))) {
        let source = filled(&setup, &stream, from, &sent);
        let target = filled(&setup, &stream, to, &vec![POISON; sent.len()]);
        let mut expected = vec![POISON; sent.len()];
        let mut pairs = Pairs::new();
        for (src, dst, size) in &places {
            pairs.push((source.slice(*src..src + size).unwrap(), target.slice(*dst..dst + size).unwrap()));
            expected[*dst..dst + size].copy_from_slice(&sent[*src..src + size]);
        }
        run(&stream, &Operation::CopyBatchInPlace { pairs: &pairs });
        assert!(content(&setup, &stream, &target) == expected, "{from} → {to}");
        drop(pairs);
    }
    drop(stream);
    setup.finish();
}

#[test]
fn list_kernel_copies_pieces_of_very_different_sizes() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let sizes = [1, 40 << 20, 4097, 3, (5 << 20) + 13, 300_001];
    let total: usize = sizes.iter().map(|size| size + 5).sum();
    let sent = noise(total, 2);
    let source = filled(&setup, &stream, MemoryKind::Mapped, &sent);
    let target = filled(&setup, &stream, MemoryKind::Device, &vec![POISON; total]);
    let (mut pairs, mut expected, mut at) = (Pairs::new(), vec![POISON; total], 0);
    for size in sizes {
        pairs.push((source.slice(at..at + size).unwrap(), target.slice(at + 3..at + 3 + size).unwrap()));
        expected[at + 3..at + 3 + size].copy_from_slice(&sent[at..at + size]);
        at += size + 5;
    }
    run(&stream, &Operation::CopyBatchInPlace { pairs: &pairs });
    assert!(content(&setup, &stream, &target) == expected);
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn batch_in_place_is_one_launch_and_allocates_once() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (source, target) = (setup.pinned(&noise(40_400, 1)), setup.device(40_400));
    let pairs = scattered(&source, &target, 400, 100);
    run(&stream, &Operation::CopyBatchInPlace { pairs: &pairs });
    for _ in 0..3 {
        let mut fence = None;
        let calls = calls_of(|| {
            let operation = Operation::CopyBatchInPlace { pairs: &pairs };
            fence = Some(submit(&stream, &operation, Timing::Off).unwrap());
        });
        assert_eq!(calls, ["cuLaunchKernel", "cuEventRecord", "cuEventRecord"]);
        fence.unwrap().wait().unwrap();
    }
    assert_eq!(content(&setup, &stream, &target)[..100], noise(40_400, 1)[399 * 101..][..100]);
    drop((pairs, source, target, stream));
    setup.finish();
}

/// Counts the calls of a name.
fn count(calls: &[&str], name: &str) -> usize {
    calls.iter().filter(|call| **call == name).count()
}

#[test]
fn small_batches_behind_a_stalled_stream_share_a_page() {
    const BATCHES: usize = 200;
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let sent = noise(404, 1);
    let (source, target) = (setup.pinned(&sent), setup.device(404));
    let pairs = scattered(&source, &target, 4, 100);
    let operation = Operation::CopyBatchInPlace { pairs: &pairs };
    run(&stream, &Operation::Fill { dst: &target, pattern: transload_core::Pattern::U8(POISON) });
    // Loads the kernels, which would wait for the gate.
    run(&stream, &Operation::CopyInPlace { src: &pairs[0].0, dst: &pairs[0].1 });
    let gate = Gate::before(&setup.device, &[&stream]);
    let calls = calls_of(|| {
        for _ in 0..BATCHES {
            submit(&stream, &operation, Timing::Off).unwrap();
        }
    });
    gate.open();
    assert_eq!((count(&calls, "cuMemHostAlloc"), count(&calls, "cuLaunchKernel")), (1, BATCHES));
    assert!(content(&setup, &stream, &target) == expected(&sent, 4, 100));
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn polled_thread_uses_the_list_memory_that_there_is() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let sent = noise(4040, 1);
    let source = filled(&setup, &stream, MemoryKind::Mapped, &sent);
    let target = filled(&setup, &stream, MemoryKind::Device, &vec![POISON; 4040]);
    let pairs = scattered(&source, &target, 40, 100);
    let operation = Operation::CopyBatchInPlace { pairs: &pairs };
    let attempt = || {
        calls_of(|| {
            try_submit(&stream, &operation, Timing::Off, &Turns::default()).unwrap().wait().unwrap();
        })
    };
    let calls = attempt();
    assert_eq!((count(&calls, "cuMemHostAlloc"), count(&calls, "cuLaunchKernel")), (0, 40));
    run(&stream, &operation);
    assert_eq!(count(&attempt(), "cuLaunchKernel"), 1);
    assert!(content(&setup, &stream, &target) == expected(&sent, 40, 100));
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn dropping_the_last_stream_leaves_lists_to_drain() {
    let setup = Setup::new();
    let limit = PinnedLimit::new(u64::MAX);
    // The first manager's limit counts lists.
    let device = CudaDevice::new(setup.device.ordinal()).unwrap();
    let memory = CudaMemoryManager::new_with_pinned_limit(&device, &limit).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (source, target) = (setup.pinned(&noise(404, 1)), setup.device(404));
    let pairs = scattered(&source, &target, 4, 100);
    run(&stream, &Operation::CopyBatchInPlace { pairs: &pairs });
    let kept = limit.bytes();
    assert!(kept > 0);
    // Frees nothing, so that nothing can block the thread.
    drop(stream);
    assert_eq!(limit.bytes(), kept);
    memory.drain().unwrap();
    assert_eq!(limit.bytes(), 0);
    drop((pairs, source, target, memory, device));
    setup.finish();
}

#[test]
fn parts_of_a_long_list_may_overlap_each_other_and_nothing_else() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (count, bytes) = (700, 1024);
    let sent = noise(count * (bytes + 1), 11);
    let source = filled(&setup, &stream, MemoryKind::Mapped, &sent);
    let target = filled(&setup, &stream, MemoryKind::Device, &vec![POISON; sent.len()]);
    let pairs = scattered(&source, &target, count, bytes);
    let overlaps =
        setup.device.compute_capability().unwrap().0 >= 9 && Driver::get().unwrap().has(c"cuLaunchKernelEx");
    for _ in 0..2 {
        let calls = calls_of(|| run(&stream, &Operation::CopyBatchInPlace { pairs: &pairs }));
        let launches: Vec<_> = calls.into_iter().filter(|name| name.starts_with("cuLaunch")).collect();
        if overlaps {
            // The first one comes after all that is before it on the stream.
            assert_eq!(launches[0], "cuLaunchKernel");
            assert_eq!(launches[1..], ["cuLaunchKernelEx"; 5]);
        } else {
            assert_eq!(launches, ["cuLaunchKernel"; 3]);
        }
    }
    assert!(content(&setup, &stream, &target) == expected(&sent, count, bytes));
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn batch_in_place_longer_than_a_page_is_complete() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let count = 22_000;
    let sent = noise(2 * count, 9);
    let source = filled(&setup, &stream, MemoryKind::Mapped, &sent);
    let target = filled(&setup, &stream, MemoryKind::Device, &vec![POISON; 2 * count]);
    let pairs = scattered(&source, &target, count, 1);
    let calls = calls_of(|| run(&stream, &Operation::CopyBatchInPlace { pairs: &pairs }));
    assert_eq!(calls.iter().filter(|name| **name == "cuLaunchKernel").count(), 2, "{calls:?}");
    assert!(content(&setup, &stream, &target) == expected(&sent, count, 1));
    drop((pairs, source, target, stream));
    setup.finish();
}

#[test]
fn batch_in_place_of_memory_that_is_not_mapped_is_refused() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (pinned, there) = (setup.pinned(&[7; 64]), setup.device(128));
    let part = |from: usize| there.slice(from..from + 64).unwrap();
    let mut owner = vec![9_u8; 64].into_boxed_slice();
    let address = NonNull::from(&mut *owner).cast();
    // SAFETY: the box owns the bytes, and does not move them when it is moved.
    let pageable = unsafe { HostBytes::new(owner, address, 64, MemoryKind::Pageable, true) };
    let pageable = RawBuffer::new(Box::new(pageable), &Arc::new(Reclaimer::new()));
    let pairs = [(pinned.clone(), part(0)), (pageable, part(64))];
    let refused = submit(&stream, &Operation::CopyBatchInPlace { pairs: &pairs }, Timing::Off).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("cannot use cpu/pageable memory in place"), "{refused}");
    assert!(pinned.try_write().is_ok(), "a refused batch leaves no claim");
    drop((pairs, pinned, there, stream));
    setup.finish();
}
