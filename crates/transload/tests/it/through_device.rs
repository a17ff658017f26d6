//! Lists through device memory: contents, bounds of the scratch memory, and who touches the host's memory.

use std::{
    future::IntoFuture,
    ops::Range,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use transload::{
    CopyManyBuilder, CopyManyReport, ListWay, MemoryKind, RawBuffer, TransferMethod,
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sim::harness::noise;
use transload_cuda_sys::trace;

use crate::{
    cuda::Setup,
    gate::{Gate, limited},
};

type Pair = (RawBuffer, RawBuffer);
/// Position in the host's memory, in the device's, and length.
type Piece = (usize, usize, usize);

/// Pieces of 1 to 6,000 bytes: those of the host follow each other, but for a gap now and then, in the given order; those of the device
/// are shuffled and apart.
fn random_pieces(bytes: usize, seed: u64) -> Vec<Piece> {
    let mut numbers = noise(bytes, seed).chunks_exact(8).map(to_number).collect::<Vec<_>>().into_iter();
    let mut draw = move |end: usize| numbers.next().unwrap_or(0) % end;
    let (mut pieces, mut host, mut moved) = (Vec::new(), 0, 0);
    while moved < bytes {
        host += if draw(40) == 0 { draw(100) } else { 0 };
        let length = 1 + draw(6000);
        pieces.push((host, 0, length));
        (host, moved) = (host + length, moved + length);
    }
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    (1..order.len()).rev().for_each(|at| order.swap(at, draw(at + 1)));
    let mut device = 0;
    for at in order {
        device += draw(9);
        pieces[at].1 = device;
        device += pieces[at].2;
    }
    pieces
}

fn to_number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)) as usize
}

fn ends(pieces: &[Piece]) -> (usize, usize) {
    pieces.iter().fold((0, 0), |(near, far), (host, device, length)| {
        (near.max(host + length), far.max(device + length))
    })
}

fn part(of: &RawBuffer, at: usize, length: usize) -> RawBuffer {
    of.slice(at..at + length).unwrap()
}

fn pairs_of(pieces: &[Piece], near: &RawBuffer, far: &RawBuffer, is_upload: bool) -> Vec<Pair> {
    let pair = |(host, device, length): &Piece| {
        let (host, device) = (part(near, *host, *length), part(far, *device, *length));
        if is_upload { (host, device) } else { (device, host) }
    };
    pieces.iter().map(pair).collect()
}

/// Pageable memory would go by copy engines where that is faster.
fn many(setup: &Setup, kind: MemoryKind, pairs: Vec<Pair>) -> CopyManyBuilder<'_> {
    let copy = setup.manager.copy_many(pairs);
    if kind == MemoryKind::Pageable { copy.way(ListWay::ThroughDevice) } else { copy }
}

/// Copies `pieces` between filled buffers, and checks every byte of the destination.
fn copy_checked(setup: &Setup, kind: MemoryKind, pieces: &[Piece], is_upload: bool) -> CopyManyReport {
    let (near_end, far_end) = ends(pieces);
    let (host, device) = (noise(near_end + 7, 1), noise(far_end + 7, 2));
    let near = setup.filled(kind, &host);
    let far = setup.allocate(MemoryKind::Device, device.len());
    setup.manager.copy(&setup.filled(MemoryKind::Pageable, &device), &far).wait().unwrap();
    let report = many(setup, kind, pairs_of(pieces, &near, &far, is_upload)).wait().unwrap();
    let (mut expected, source) = if is_upload { (device, &host) } else { (host, &device) };
    for (here, there, length) in pieces {
        let (from, to) = if is_upload { (here, there) } else { (there, here) };
        expected[*to..to + length].copy_from_slice(&source[*from..from + length]);
    }
    let target = if is_upload { &far } else { &near };
    let back = setup.allocate(MemoryKind::Pageable, target.len());
    setup.manager.copy(target, &back).wait().unwrap();
    assert!(*back.read().unwrap() == expected[..], "{kind}, up: {is_upload}");
    report
}

fn went_through_device(report: &CopyManyReport) -> bool {
    let [group] = report.groups.as_slice() else { panic!("{report:#}") };
    assert_eq!(group.to_string().contains("through device memory"), group.through_device);
    let staged = [group.path.src, group.path.dst].iter().any(|place| place.kind == MemoryKind::Pageable);
    let method = if staged { TransferMethod::HostStaged } else { TransferMethod::DirectCopy };
    assert_eq!(group.method, method);
    group.through_device
}

#[test]
fn random_layouts_arrive_whole_in_any_order_of_the_list() {
    let setup = Setup::new();
    for (seed, (kind, is_upload)) in [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Pageable]
        .into_iter()
        .flat_map(|kind| [(kind, true), (kind, false)])
        .enumerate()
    {
        let mut pieces = random_pieces(1_200_000, seed as u64);
        assert!(went_through_device(&copy_checked(&setup, kind, &pieces, is_upload)));
        // In the order of the device's memory.
        pieces.sort_unstable_by_key(|piece| piece.1);
        assert!(went_through_device(&copy_checked(&setup, kind, &pieces, is_upload)));
    }
}

#[test]
fn lists_that_gain_nothing_go_by_the_batch_call() {
    let setup = Setup::new();
    let pieces = |count: usize, length: usize, gap: usize| -> Vec<Piece> {
        (0..count).map(|at| (at * (length + gap), (count - 1 - at) * length, length)).collect()
    };
    for (pieces, up_too, why) in [
        (pieces(200, 4096, 0), true, "too few bytes"),
        (pieces(300, 4096, 1025), true, "each piece is a stretch"),
        (pieces(300, 4096, 1), false, "a download writes no gaps"),
        (pieces(8, 200 << 10, 0), true, "long pieces"),
    ] {
        for is_upload in [true, false] {
            let report = copy_checked(&setup, MemoryKind::Pinned, &pieces, is_upload);
            assert_eq!(went_through_device(&report), is_upload && !up_too, "{why}");
        }
    }
}

/// Returns the allocated bytes of the device's backend.
fn allocated(setup: &Setup) -> u64 {
    setup.manager.resource_counts().iter().map(|(_, counts)| counts.bytes).sum()
}

#[test]
fn lists_of_many_chunks_share_bounded_scratch_memory() {
    const LENGTH: usize = 30 << 10;
    const COUNT: usize = 1150;
    /// As documented: three buffers of each direction.
    const MOST: u64 = 2 * 3 * (65 << 20);
    let setup = Setup::new();
    let content = noise(LENGTH, 7);
    let host = || setup.allocate(MemoryKind::Pinned, COUNT * LENGTH);
    let (source, target, device) = (host(), host(), setup.allocate(MemoryKind::Device, COUNT * LENGTH));
    source.write().unwrap().chunks_mut(LENGTH).enumerate().for_each(|(at, piece)| {
        piece.copy_from_slice(&content);
        piece[0] = at as u8;
    });
    let pieces: Vec<Piece> = (0..COUNT).map(|at| (at * LENGTH, at * 7 % COUNT * LENGTH, LENGTH)).collect();
    let before = allocated(&setup);
    let copies = || {
        let up = setup.manager.copy_many(pairs_of(&pieces, &source, &device, true)).submit();
        let down = setup.manager.copy_many(pairs_of(&pieces, &target, &device, false)).submit();
        assert_eq!((up.fences().count(), down.fences().count()), (1, 1));
        [up, down]
    };
    // In flight at once.
    let transfers: Vec<_> = [copies(), copies()].into_iter().flatten().collect();
    let kept = allocated(&setup) - before;
    assert!(kept > 0 && kept <= MOST, "{kept} bytes of scratch memory");
    for (at, transfer) in transfers.into_iter().enumerate() {
        let report = transfer.wait().unwrap();
        // The last one finds no idle buffer if the others still wait.
        assert!(went_through_device(&report) || at == 3, "list {at}");
    }
    let is_right = |(at, piece): (usize, &[u8])| piece[0] == at as u8 && piece[1..] == content[1..];
    assert!(target.read().unwrap().chunks(LENGTH).enumerate().all(is_right));
    setup.manager.drain().unwrap();
    assert_eq!(allocated(&setup), before, "a drain frees the scratch memory");
}

#[test]
fn independent_lists_use_a_scratch_buffer_in_turn() {
    const LENGTH: usize = 4096;
    const COUNT: usize = 2400;
    let setup = Setup::new();
    let content = noise(COUNT * LENGTH, 11);
    let source = setup.filled(MemoryKind::Pinned, &content);
    let target = setup.filled(MemoryKind::Pinned, &vec![0; COUNT * LENGTH]);
    let device = setup.allocate(MemoryKind::Device, COUNT * LENGTH);
    let pieces: Vec<Piece> = (0..COUNT).map(|at| (at * LENGTH, at * 7 % COUNT * LENGTH, LENGTH)).collect();
    let before = allocated(&setup);
    for (host, is_upload) in [(&source, true), (&target, false)] {
        // No two have a byte in common, so only the scratch memory orders them: there are fewer buffers than lists.
        let copy = |part| setup.manager.copy_many(pairs_of(part, host, &device, is_upload)).submit();
        let transfers: Vec<_> = pieces.chunks(COUNT / 8).map(copy).collect();
        // Three buffers of 2 MiB in each direction.
        let kept = allocated(&setup) - before;
        assert!((1..=2 * 3 * (2 << 20)).contains(&kept), "{kept} bytes of scratch memory");
        for transfer in transfers {
            assert!(went_through_device(&transfer.wait().unwrap()));
        }
    }
    assert!(*target.read().unwrap() == content[..]);
}

#[test]
fn list_that_is_held_up_does_not_hold_up_independent_ones() {
    const LENGTH: usize = 4096;
    const PART: usize = 300;
    const COUNT: usize = 5 * PART;
    limited(|| {
        let setup = Setup::new();
        let content = noise(COUNT * LENGTH, 12);
        let source = setup.filled(MemoryKind::Pinned, &content);
        let target = setup.filled(MemoryKind::Pinned, &vec![0; COUNT * LENGTH]);
        let device = setup.allocate(MemoryKind::Device, COUNT * LENGTH);
        let pieces: Vec<Piece> =
            (0..COUNT).map(|at| (at * LENGTH, at * 7 % COUNT * LENGTH, LENGTH)).collect();
        let small = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| setup.allocate(kind, 64));
        let gpu = CudaDevice::new(setup.test.ordinal()).unwrap();
        let stream = CudaStream::new(&gpu).unwrap();
        for (host, is_upload) in [(&source, true), (&target, false)] {
            // Loading a kernel waits for the device.
            setup.manager.copy_many(pairs_of(&pieces[..PART], host, &device, is_upload)).wait().unwrap();
            let gate = Gate::before(&gpu, &[&stream]);
            let blocked = setup.manager.copy(&small[0], &small[1]).on(&stream).submit();
            let list = |part| setup.manager.copy_many(pairs_of(part, host, &device, is_upload));
            let held_up = |part| list(part).after(blocked.fence().unwrap()).submit();
            let (waiting, independent) = pieces.split_at(3 * PART);
            let [first, second, third] = [0, 1, 2].map(|at| &waiting[at * PART..][..PART]);
            let mut transfers = vec![held_up(first), held_up(second)];
            for part in independent.chunks(PART) {
                assert!(went_through_device(&list(part).wait().unwrap()));
            }
            transfers.push(held_up(third));
            gate.open();
            blocked.wait().unwrap();
            // The third leaves the last buffer to others.
            for (at, transfer) in transfers.into_iter().enumerate() {
                assert_eq!(went_through_device(&transfer.wait().unwrap()), at < 2, "list {at}");
            }
        }
        assert!(*target.read().unwrap() == content[..]);
    });
}

#[test]
fn polled_list_loads_no_kernel() {
    const LENGTH: usize = 32 << 10;
    // So few that the polling thread begins to submit them.
    const COUNT: usize = 32;
    let setup = Setup::new();
    let host = setup.filled(MemoryKind::Pinned, &noise(COUNT * LENGTH, 13));
    let device = setup.allocate(MemoryKind::Device, COUNT * LENGTH);
    // Creates a stream.
    setup.manager.copy(&host, &device).wait().unwrap();
    let pieces: Vec<Piece> = (0..COUNT).map(|at| (at * LENGTH, at * 7 % COUNT * LENGTH, LENGTH)).collect();
    let mut copy = setup.manager.copy_many(pairs_of(&pieces, &host, &device, true)).into_future();
    let trace = trace::start();
    // Another thread may be done already.
    let ended = Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop()));
    let calls = trace.calls_of_this_thread();
    assert!(!calls.iter().any(|call| call.name.contains("Load")), "{calls:?}");
    drop(trace);
    let report = match ended {
        Poll::Ready(copied) => copied,
        Poll::Pending => pollster::block_on(copy),
    };
    assert!(went_through_device(&report.unwrap()));
}

/// Loading waits for the whole device.
#[test]
fn polled_list_within_a_device_loads_no_kernel() {
    const LENGTH: usize = 1 << 10;
    for wanted in [false, true] {
        let setup = Setup::new();
        let [one, two] = [(); 2].map(|()| setup.allocate(MemoryKind::Device, 32 * LENGTH));
        let [three, four] = [(); 2].map(|()| setup.filled(MemoryKind::Pinned, &noise(32 * LENGTH, 13)));
        // Makes streams.
        setup.manager.copy(&three, &one).wait().unwrap();
        setup.manager.copy(&one, &two).wait().unwrap();
        setup.manager.copy(&two, &four).wait().unwrap();
        let pieces: Vec<Piece> = (0..16).map(|at| (at * LENGTH, at * 7 % 16 * LENGTH, LENGTH)).collect();
        let mut pairs = pairs_of(&pieces, &one, &two, true);
        if wanted {
            pairs.extend(pairs_of(&pieces, &three, &two, true).into_iter().map(|(src, dst)| {
                (src, two.slice(dst.offset() + 16 * LENGTH..dst.offset() + 17 * LENGTH).unwrap())
            }));
        }
        let copy = setup.manager.copy_many(pairs);
        let copy = if wanted { copy.way(ListWay::CopyKernel) } else { copy };
        let mut copy = copy.into_future();
        let trace = trace::start();
        // Another thread may be done already.
        let ended = Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop()));
        let calls = trace.calls_of_this_thread();
        assert!(!calls.iter().any(|call| call.name.contains("Load")), "{calls:?}");
        drop(trace);
        match ended {
            Poll::Ready(copied) => copied,
            Poll::Pending => pollster::block_on(copy),
        }
        .unwrap();
        setup.manager.copy(&two, &four).wait().unwrap();
        let (sent, back) = (noise(32 * LENGTH, 13), four.read().unwrap());
        for (from, to, length) in &pieces {
            assert!(back[*to..][..*length] == sent[*from..][..*length]);
        }
        drop(back);
        // Once they are loaded, the polling thread submits.
        let mut again = setup.manager.copy_many(pairs_of(&pieces, &one, &two, true)).into_future();
        let trace = trace::start();
        let ended = Pin::new(&mut again).poll(&mut Context::from_waker(Waker::noop()));
        assert!(trace.calls_of_this_thread().iter().any(|call| call.name == "cuLaunchKernel"));
        drop(trace);
        if ended.is_pending() {
            pollster::block_on(again).unwrap();
        }
    }
}

/// As many pieces at odd places, apart in both memories, with one of 0 bytes somewhere.
fn pieces_apart(count: usize, length: usize) -> Vec<Piece> {
    let piece = |at| (3 + at * (length + 9), 5 + at * 7 % count * (length + 15), length);
    let mut pieces: Vec<Piece> = (0..count).map(piece).collect();
    pieces.insert(count / 3, (0, 1, 0));
    pieces
}

/// Returns the driver calls of this thread that move bytes.
fn moving_calls(during: impl FnOnce()) -> Vec<&'static str> {
    let trace = trace::start();
    during();
    let names = trace.calls_of_this_thread().into_iter().map(|call| call.name);
    names.filter(|name| ["cuMemcpy", "cuLaunch"].iter().any(|part| name.starts_with(part))).collect()
}

#[test]
fn pieces_with_gaps_go_up_by_one_copy_and_one_launch() {
    let setup = Setup::new();
    for kind in [MemoryKind::Pinned, MemoryKind::Mapped] {
        let mut pieces = pieces_apart(1000, 4093);
        assert!(went_through_device(&copy_checked(&setup, kind, &pieces, true)));
        // In the order of the device's memory.
        pieces.sort_unstable_by_key(|piece| piece.1);
        assert!(went_through_device(&copy_checked(&setup, kind, &pieces, true)));
        let (near, far) = ends(&pieces);
        let (near, far) = (setup.allocate(kind, near), setup.allocate(MemoryKind::Device, far));
        let pairs = pairs_of(&pieces, &near, &far, true);
        let mut transfer = None;
        let calls = moving_calls(|| transfer = Some(setup.manager.copy_many(&pairs).submit()));
        assert_eq!(calls, ["cuMemcpyHtoDAsync_v2", "cuLaunchKernel"]);
        transfer.unwrap().wait().unwrap();
    }
}

#[test]
fn chunks_of_pieces_with_gaps_arrive_whole() {
    let setup = Setup::new();
    // The pieces fill one chunk, and make two with the gaps.
    const COUNT: usize = 1100;
    let pieces = pieces_apart(COUNT, ((32 << 20) - 1) / COUNT);
    assert!(went_through_device(&copy_checked(&setup, MemoryKind::Pinned, &pieces, true)));
}

#[test]
fn kernel_touches_device_memory_only() {
    const LENGTH: usize = 4096;
    const COUNT: usize = 512;
    let setup = Setup::new();
    let host = setup.filled(MemoryKind::Pinned, &noise(COUNT * LENGTH, 8));
    let device = setup.allocate(MemoryKind::Device, COUNT * LENGTH);
    let pieces: Vec<Piece> = (0..COUNT).map(|at| (at * LENGTH, at * 7 % COUNT * LENGTH, LENGTH)).collect();
    for is_upload in [true, false] {
        let pairs = pairs_of(&pieces, &host, &device, is_upload);
        // What is set up at first is done.
        setup.manager.copy_many(&pairs).wait().unwrap();
        let seen = setup.test.sim().map(|sim| sim.accesses().len());
        let mut transfer = None;
        let moving = moving_calls(|| transfer = Some(setup.manager.copy_many(&pairs).submit()));
        let engine = if is_upload { "cuMemcpyHtoDAsync_v2" } else { "cuMemcpyDtoHAsync_v2" };
        let expected = if is_upload { [engine, "cuLaunchKernel"] } else { ["cuLaunchKernel", engine] };
        assert_eq!(moving, expected);
        transfer.unwrap().wait().unwrap();
        if let (Some(sim), Some(seen)) = (setup.test.sim(), seen) {
            let of_host = address_range(&host);
            let accesses = sim.accesses();
            let touching = |access: &&transload_cuda_sim::AccessRecord| of_host.contains(&access.address);
            let by: Vec<_> =
                accesses[seen..].iter().filter(touching).map(|access| access.operation).collect();
            assert!(!by.is_empty() && by.iter().all(|operation| *operation == engine), "{by:?}");
        }
    }
}

fn address_range(buffer: &RawBuffer) -> Range<u64> {
    let begin = buffer.host_address().unwrap().addr().get() as u64;
    begin..begin + buffer.len() as u64
}

#[test]
fn idle_device_takes_lists_by_kernel_whatever_their_length() {
    const LENGTH: usize = 64 << 10;
    let setup = Setup::new();
    for count in [100, 2048] {
        let host = setup.allocate(MemoryKind::Pinned, count * LENGTH);
        host.write().unwrap().fill(5);
        let device = setup.allocate(MemoryKind::Device, count * LENGTH);
        let pieces: Vec<Piece> =
            (0..count).map(|at| (at * LENGTH, at * 7 % count * LENGTH, LENGTH)).collect();
        let pairs = pairs_of(&pieces, &host, &device, true);
        let report = setup.manager.copy_many(&pairs).exclusive().wait().unwrap();
        let [group] = report.groups.as_slice() else { panic!("{report:#}") };
        assert_eq!((group.method, group.through_device), (TransferMethod::ZeroCopy, false));
    }
}

#[test]
fn lists_through_device_memory_are_ordered_with_other_copies() {
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        ordered_with_other_copies(kind);
    }
}

fn ordered_with_other_copies(kind: MemoryKind) {
    let setup = Setup::new();
    let pieces = random_pieces(1_100_000, 9);
    let (near_end, far_end) = ends(&pieces);
    let contents = [noise(near_end, 3), noise(near_end, 4)];
    let [first, second] = contents.each_ref().map(|content| setup.filled(kind, content));
    let near = setup.allocate(kind, near_end);
    let far = setup.allocate(MemoryKind::Device, far_end);
    let back = setup.allocate(kind, near_end);
    back.write().unwrap().fill(0);
    for (source, content) in [(&first, &contents[0]), (&second, &contents[1])] {
        // Nothing is waited for but the end.
        drop(setup.manager.copy(source, &near).submit());
        drop(many(&setup, kind, pairs_of(&pieces, &near, &far, true)).submit());
        drop(setup.manager.copy(&second, &near).submit());
        let down = many(&setup, kind, pairs_of(&pieces, &back, &far, false)).submit();
        assert!(went_through_device(&down.wait().unwrap()));
        let view = back.read().unwrap();
        assert!(pieces.iter().all(|(at, _, length)| view[*at..at + length] == content[*at..at + length]));
    }
    // Until the host copied: a queue cannot always wait for it.
    drop(near.read().unwrap());
    let awaited = many(&setup, kind, pairs_of(&pieces, &near, &far, true));
    assert!(went_through_device(&pollster::block_on(async { awaited.await }).unwrap()));
}
