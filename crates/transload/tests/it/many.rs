//! Many copies at once: contents of any mix, as few driver calls as the places allow, and order.

use std::future::IntoFuture;

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, RawBuffer, TransferMethod, TransferOptions,
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sim::harness::noise;
use transload_cuda_sys::{AsStream, trace};

use crate::{cuda::Setup, gate::limited, lanes::stream_of};

type Pair = (RawBuffer, RawBuffer);

const KINDS: [MemoryKind; 5] =
    [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device, MemoryKind::Unified];

/// Copies the bytes back to the host.
fn read(manager: &CrossBackendTransferManager, from: &RawBuffer) -> Vec<u8> {
    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, from.len()).unwrap();
    manager.copy(from, &back).wait().unwrap();
    back.read().unwrap().to_vec()
}

/// A small generator, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

#[test]
fn random_mixes_of_places_arrive_whole() {
    const POOL: usize = 40_000;
    let setup = Setup::new();
    let mut random = Random(7);
    let sources: Vec<(Vec<u8>, RawBuffer)> = KINDS
        .into_iter()
        .map(|kind| {
            let content = noise(POOL, kind as u64);
            let source = setup.allocate(kind, POOL);
            setup.manager.copy(&setup.filled(MemoryKind::Pageable, &content), &source).wait().unwrap();
            (content, source)
        })
        .collect();
    for round in 0..6 {
        let targets = KINDS.map(|kind| setup.allocate(kind, POOL));
        let mut expected: Vec<Vec<u8>> = targets.iter().map(|target| read(&setup.manager, target)).collect();
        let (mut pairs, mut ends) = (Vec::new(), [0; KINDS.len()]);
        for _ in 0..120 {
            let (from, to) = (random.below(KINDS.len()), random.below(KINDS.len()));
            let longest = [1, 16, 700, 3_000][random.below(4)];
            let (len, gap) = (random.below(longest + 1), random.below(5));
            let (start, at) = (random.below(POOL - len), ends[to] + gap);
            if at + len > POOL {
                continue;
            }
            ends[to] = at + len;
            expected[to][at..at + len].copy_from_slice(&sources[from].0[start..start + len]);
            pairs.push((
                sources[from].1.slice(start..start + len).unwrap(),
                targets[to].slice(at..at + len).unwrap(),
            ));
        }
        let copy = setup.manager.copy_many(&pairs);
        let copy = if round % 2 == 0 { copy } else { copy.exclusive() };
        let report = if round < 3 { copy.wait() } else { pollster::block_on(copy.into_future()) }.unwrap();
        let bytes: usize = pairs.iter().map(|(src, _)| src.len()).sum();
        assert_eq!((report.pairs, report.bytes), (pairs.len(), bytes as u64));
        for (target, expected) in targets.iter().zip(&expected) {
            assert!(read(&setup.manager, target) == *expected, "{} in round {round}", target.place());
        }
    }
}

/// Each 512 bytes of one buffer to other 512 of another.
fn scattered(from: &RawBuffer, to: &RawBuffer) -> Vec<Pair> {
    let count = from.len() / 512;
    let part = |of: &RawBuffer, at: usize| of.slice(at * 512..(at + 1) * 512).unwrap();
    (0..count).map(|at| (part(from, at), part(to, at * 7 % count))).collect()
}

#[test]
fn list_is_one_batch_or_one_kernel_if_exclusive() {
    let setup = Setup::new();
    let content = noise(512 * 1000, 3);
    let near = setup.filled(MemoryKind::Pinned, &content);
    let (far, other) = (
        setup.allocate(MemoryKind::Device, content.len()),
        setup.allocate(MemoryKind::Device, content.len()),
    );
    let cases = [
        (&near, &far, false, "cuMemcpyBatchAsync", TransferMethod::DirectCopy),
        (&near, &far, true, "cuLaunchKernel", TransferMethod::ZeroCopy),
        // Within a device nothing waits for the host.
        (&far, &other, false, "cuLaunchKernel", TransferMethod::DirectCopy),
    ];
    for (from, to, exclusive, call, method) in cases {
        let pairs = scattered(from, to);
        let copy = || match exclusive {
            true => setup.manager.copy_many(&pairs).exclusive(),
            false => setup.manager.copy_many(&pairs),
        };
        // What is set up at first is done.
        copy().wait().unwrap();
        let trace = trace::start();
        let transfer = copy().submit();
        assert_eq!(transfer.fences().count(), 1);
        let moving: Vec<_> = trace.calls_of_this_thread().iter().map(|call| call.name).collect();
        let moving: Vec<_> = moving
            .into_iter()
            .filter(|name| ["cuMemcpy", "cuLaunch"].iter().any(|part| name.starts_with(part)))
            .collect();
        assert!(matches!(moving.as_slice(), [one] if one.starts_with(call)), "{moving:?}");
        drop(trace);
        let report = transfer.wait().unwrap();
        let [group] = report.groups.as_slice() else { panic!("{report:#}") };
        assert_eq!((group.method, group.chunks), (method, 1000));
    }
    let mut expected = vec![0; content.len()];
    for at in 0..1000 {
        let there = at * 7 % 1000 * 7 % 1000;
        expected[there * 512..][..512].copy_from_slice(&content[at * 512..][..512]);
    }
    assert!(read(&setup.manager, &other) == expected);
}

#[test]
fn pageable_list_is_staged_and_scattered_by_kernels_or_batches() {
    let setup = Setup::new();
    // Beside other work a list goes through device memory from so many pieces on, if they are apart there.
    for (count, length, exclusive, step, call) in [
        (510, 512, false, 7, "cuMemcpyBatchAsync"),
        (512, 512, false, 7, "cuLaunchKernel"),
        (512, 512, false, 1, "cuMemcpy"),
        (2000, 512, true, 7, "cuLaunchKernel"),
        (100, 20 << 10, false, 7, "cuMemcpyBatchAsync"),
    ] {
        let goes_through = !exclusive && call == "cuLaunchKernel";
        let content = noise(length * count, 4);
        let near = setup.filled(MemoryKind::Pageable, &content);
        let back = setup.filled(MemoryKind::Pageable, &vec![0; content.len()]);
        let far = setup.allocate(MemoryKind::Device, content.len());
        let start = far.device_address().unwrap();
        let is_far = |address: u64| (start..start + far.len() as u64).contains(&address);
        let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length).unwrap();
        let many = |pairs: Vec<Pair>| {
            let copy = setup.manager.copy_many(pairs);
            let copy = if exclusive { copy.exclusive() } else { copy };
            let trace = trace::start();
            let report = copy.wait().unwrap();
            let [group] = report.groups.as_slice() else { panic!("{report:#}") };
            assert_eq!((group.method, group.through_device), (TransferMethod::HostStaged, goes_through));
            // Other tests trace calls of their own.
            let calls = trace.calls();
            assert!(calls.iter().any(|one| one.name.starts_with(call)));
            let singles = calls.iter().filter(|one| {
                one.name.starts_with("cuMemcpy")
                    && one.arguments.iter().take(2).any(|argument| is_far(*argument))
            });
            // Of a chunk, what threads have copied so far goes first, which may be a few pieces: no call for many.
            assert!(singles.count() < count / 2);
        };
        let there = |at: usize| part(&far, at * step % count);
        many((0..count).map(|at| (part(&near, at), there(at))).collect());
        many((0..count).map(|at| (there(at), part(&back, at))).collect());
        assert!(back.read().unwrap()[..] == content[..]);
    }
}

#[test]
fn long_pieces_go_by_copy_engines_even_if_exclusive() {
    // Enough that one batch is predicted to be faster than single copies.
    const COUNT: usize = 32;
    let setup = Setup::new();
    let (near, far) =
        (setup.allocate(MemoryKind::Pinned, COUNT << 20), setup.allocate(MemoryKind::Device, COUNT << 20));
    let part = |of: &RawBuffer, at: usize| of.slice(at << 20..(at + 1) << 20).unwrap();
    let pairs: Vec<Pair> = (0..COUNT).map(|at| (part(&near, at), part(&far, COUNT - 1 - at))).collect();
    let report = setup.manager.copy_many(&pairs).exclusive().wait().unwrap();
    assert_eq!((report.groups.len(), report.groups[0].method), (1, TransferMethod::DirectCopy));
}

#[test]
fn lists_are_ordered_with_other_copies() {
    let setup = Setup::new();
    let content = noise(512 * 200, 5);
    let (first, near) =
        (setup.filled(MemoryKind::Pageable, &content), setup.allocate(MemoryKind::Pinned, content.len()));
    let (far, back) = (
        setup.allocate(MemoryKind::Device, content.len()),
        setup.allocate(MemoryKind::Pinned, content.len()),
    );
    let copies = (
        setup.manager.copy(&first, &near).submit(),
        setup.manager.copy_many(scattered(&near, &far)).submit(),
        setup.manager.copy_many(scattered(&far, &near)).exclusive().submit(),
        setup.manager.copy(&near, &back).submit(),
    );
    copies.3.wait().unwrap();
    let mut expected = vec![0; content.len()];
    for at in 0..200 {
        expected[at * 7 % 200 * 7 % 200 * 512..][..512].copy_from_slice(&content[at * 512..][..512]);
    }
    assert!(back.read().unwrap()[..] == expected[..]);
    drop((copies.0, copies.1, copies.2));
}

#[test]
fn list_is_enqueued_on_the_callers_stream() {
    let setup = Setup::new();
    let device = CudaDevice::new(setup.test.ordinal()).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (near, far) =
        (setup.allocate(MemoryKind::Pinned, 512 * 50), setup.allocate(MemoryKind::Device, 512 * 50));
    let pairs = scattered(&near, &far);
    setup.manager.copy_many(&pairs).on(&stream).exclusive().wait().unwrap();
    let trace = trace::start();
    let transfer = setup.manager.copy_many(&pairs).on(&stream).exclusive().submit();
    assert_eq!(stream_of(&trace), stream.driver().as_raw() as u64);
    drop(trace);
    transfer.wait().unwrap();
    // Within the host no stream copies.
    let (host, other) = (setup.allocate(MemoryKind::Pageable, 8), setup.allocate(MemoryKind::Pageable, 8));
    let mixed: Vec<Pair> = pairs.iter().cloned().chain([(host, other)]).collect();
    let failed = setup.manager.copy_many(mixed).on(&stream).wait().unwrap_err();
    assert_eq!((failed.error.kind(), failed.pairs.as_slice()), (ErrorKind::InvalidArgument, &[50][..]));
}

#[test]
fn list_with_a_host_view_is_busy_as_a_whole() {
    let setup = Setup::new();
    let (near, far) =
        (setup.allocate(MemoryKind::Pinned, 512 * 20), setup.allocate(MemoryKind::Device, 512 * 20));
    let pairs = scattered(&near, &far);
    let view = pairs[11].0.write().unwrap();
    let failed = setup.manager.copy_many(&pairs).wait().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    assert_eq!(failed.pairs, (0..20).collect::<Vec<_>>());
    drop(view);
    setup.manager.copy_many(&pairs).wait().unwrap();
}

#[test]
fn buffers_and_handle_may_be_dropped_while_a_list_is_copied() {
    limited(|| {
        let setup = Setup::new();
        let content = noise(512 * 300, 9);
        let far = setup.allocate(MemoryKind::Device, content.len());
        let near = setup.filled(MemoryKind::Pinned, &content);
        drop(setup.manager.copy_many(scattered(&near, &far)).submit());
        drop(near);
        let seen = read(&setup.manager, &far);
        assert!(seen[7 * 512..8 * 512] == content[512..1024]);
        let host = setup.filled(MemoryKind::Pageable, &content);
        let only = TransferOptions::new().only(TransferMethod::HostStaged);
        drop(setup.manager.copy_many(scattered(&host, &far)).options(only).submit());
        drop((host, far));
    });
}
