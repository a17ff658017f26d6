//! Copies of blocks of paged caches: contents, order, refusals by index, and recordings.

use transload::{
    CopyManyBuilder, CrossBackendTransferManager, DeviceId, ErrorKind, ListWay, MemoryKind, RawBuffer,
    TransferMethod, cuda::CudaDevice, cuda::CudaStream,
};
use transload_cuda_sim::harness::noise;
use transload_cuda_sys::trace;

use crate::cuda::Setup;

const BLOCK: usize = 300;
const BLOCKS: usize = 50;
const LAYERS: usize = 3;

/// A pool for each layer.
struct Cache {
    pools: Vec<RawBuffer>,
    content: Vec<Vec<u8>>,
}

impl Cache {
    fn new(setup: &Setup, kind: MemoryKind, seed: u64) -> Self {
        let content: Vec<_> =
            (0..LAYERS as u64).map(|layer| noise(BLOCK * BLOCKS, 10 * seed + layer)).collect();
        let pools: Vec<_> = content.iter().map(|_| setup.allocate(kind, BLOCK * BLOCKS)).collect();
        let cache = Self { pools, content };
        cache.write(&setup.manager);
        cache
    }

    fn write(&self, manager: &CrossBackendTransferManager) {
        for (pool, content) in self.pools.iter().zip(&self.content) {
            let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, content.len()).unwrap();
            host.write().unwrap().copy_from_slice(content);
            manager.copy(&host, pool).wait().unwrap();
        }
    }

    /// What the copy of blocks should do.
    fn take(&mut self, to: &[usize], other: &Self, from: &[usize]) {
        for (mine, theirs) in self.content.iter_mut().zip(&other.content) {
            for (to, from) in to.iter().zip(from) {
                mine[to * BLOCK..][..BLOCK].copy_from_slice(&theirs[from * BLOCK..][..BLOCK]);
            }
        }
    }

    fn check(&self, manager: &CrossBackendTransferManager, what: &str) {
        for (layer, (pool, content)) in self.pools.iter().zip(&self.content).enumerate() {
            let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, pool.len()).unwrap();
            manager.copy(pool, &back).wait().unwrap();
            assert!(*back.read().unwrap() == content[..], "layer {layer}: {what}");
        }
    }
}

const KINDS: [MemoryKind; 4] =
    [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device];
const FROM: [usize; 6] = [7, 8, 2, 49, 0, 30];
const TO: [usize; 6] = [11, 12, 40, 3, 49, 0];

#[test]
fn blocks_of_each_layer_arrive_between_all_memory() {
    let setup = Setup::new();
    for (from, to) in KINDS.into_iter().flat_map(|from| KINDS.map(|to| (from, to))) {
        for exclusive in [false, true] {
            let (source, mut target) = (Cache::new(&setup, from, 1), Cache::new(&setup, to, 2));
            let copy =
                setup.manager.copy_blocks((&source.pools, &FROM), (&target.pools, &TO), BLOCK).unwrap();
            let copy = if exclusive { copy.exclusive() } else { copy };
            let report = copy.wait().unwrap();
            assert_eq!((report.pairs, report.bytes), (LAYERS * 6, (LAYERS * 6 * BLOCK) as u64));
            target.take(&TO, &source, &FROM);
            target.check(&setup.manager, &format!("{from} → {to}"));
            source.check(&setup.manager, "the source");
        }
    }
}

#[test]
fn blocks_that_a_kernel_copies_are_a_list_of_their_runs() {
    const LONG: usize = 2048;
    const COUNT: usize = 700;
    let setup = Setup::new();
    let content = noise(2 * LONG * COUNT, 5);
    let buffers = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| {
        let (host, buffer) =
            (setup.filled(MemoryKind::Pageable, &content), setup.allocate(kind, content.len()));
        setup.manager.copy(&host, &buffer).wait().unwrap();
        buffer
    });
    // Layers of one allocation. Every third block of the host is left out, and its neighbours are neighbours on the device.
    let layer = |of: &RawBuffer, at: usize| of.slice(at * LONG * COUNT..(at + 1) * LONG * COUNT).unwrap();
    let pools = buffers.each_ref().map(|of| [layer(of, 0), layer(of, 1)]);
    let host: Vec<usize> = (0..COUNT).filter(|index| index % 3 != 2).collect();
    let there: Vec<usize> = (0..host.len()).map(|at| COUNT - 2 - at / 2 * 2 + at % 2).collect();
    for up in [true, false] {
        let (src, dst, from, to) =
            if up { (&pools[0], &pools[1], &host, &there) } else { (&pools[1], &pools[0], &there, &host) };
        let copy = || setup.manager.copy_blocks((src, from), (dst, to), LONG).unwrap().exclusive();
        // Sets up what a list needs.
        copy().wait().unwrap();
        let trace = trace::start();
        let transfer = copy().submit();
        let calls = trace.calls_of_this_thread();
        drop(trace);
        let launches = calls.iter().filter(|call| call.name.starts_with("cuLaunchKernel")).count();
        // All runs of two layers: of 128 pieces, and the rest, or of 128 each where launches may overlap.
        assert!([2, 4].contains(&launches), "up: {up}, {launches}");
        assert_eq!(transfer.fences().count(), 1, "up: {up}");
        let free = layer(&buffers[0], 1).slice(2 * LONG..3 * LONG).unwrap();
        assert!(free.try_write().is_ok(), "a block that is not in the list");
        let report = transfer.wait().unwrap();
        assert_eq!((report.pairs, report.groups[0].chunks), (2 * host.len(), 2 * host.len() as u32));
        assert_eq!((report.bytes, report.groups.len()), ((2 * host.len() * LONG) as u64, 1));
        assert_eq!(report.groups[0].method, TransferMethod::ZeroCopy);
    }
    let mut expected = content.clone();
    for (layer, (from, to)) in (0..2).flat_map(|layer| host.iter().zip(&there).map(move |pair| (layer, pair)))
    {
        let at = |index: &usize| (layer * COUNT + index) * LONG;
        expected[at(to)..][..LONG].copy_from_slice(&content[at(from)..][..LONG]);
    }
    let back = setup.allocate(MemoryKind::Pageable, expected.len());
    setup.manager.copy(&buffers[1], &back).wait().unwrap();
    assert!(*back.read().unwrap() == expected[..]);
    setup.manager.copy(&buffers[0], &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..], "the same blocks back");
}

/// Two layers in each kind of memory, of blocks that tell their place.
struct Layers {
    bytes: usize,
    count: usize,
    host: [RawBuffer; 2],
    device: [RawBuffer; 2],
}

impl Layers {
    fn new(setup: &Setup, (bytes, count): (usize, usize)) -> Self {
        let pools = |kind| [(); 2].map(|()| setup.allocate(kind, bytes * count));
        Self { bytes, count, host: pools(MemoryKind::Pinned), device: pools(MemoryKind::Device) }
    }

    /// Each block of the host has its layer and index at both ends, and zeros.
    fn number(&self) {
        for (layer, pool) in self.host.iter().enumerate() {
            let mut view = pool.write().unwrap();
            view.fill(0);
            for (index, block) in view.chunks_mut(self.bytes).enumerate() {
                let number = ((layer * self.count + index) as u32).to_le_bytes();
                block[..4].copy_from_slice(&number);
                block[self.bytes - 4..].copy_from_slice(&number);
            }
        }
    }

    /// Asserts that block `to[i]` of the host's layers has what block `from[i]` had.
    fn check(&self, from: &[usize], to: &[usize], what: &str) {
        for (layer, pool) in self.host.iter().enumerate() {
            let view = pool.read().unwrap();
            for (from, to) in from.iter().zip(to) {
                let block = &view[to * self.bytes..(to + 1) * self.bytes];
                let number = ((layer * self.count + from) as u32).to_le_bytes();
                let (head, rest) = block.split_at(4);
                let (zeros, tail) = rest.split_at(self.bytes - 8);
                let is_right = head == number && tail == number && zeros.iter().all(|byte| *byte == 0);
                assert!(is_right, "block {to} of layer {layer}: {what}");
            }
        }
    }
}

#[test]
fn blocks_go_through_device_memory_in_any_order() {
    const BYTES: usize = 4_500;
    const COUNT: usize = 300;
    let setup = Setup::new();
    let layers = Layers::new(&setup, (BYTES, COUNT));
    let zeros = setup.allocate(MemoryKind::Device, BYTES * COUNT);
    let zeroed = setup.filled(MemoryKind::Pinned, &vec![0; BYTES * COUNT]);
    setup.manager.copy(&zeroed, &zeros).wait().unwrap();
    let scattered: Vec<usize> = (0..COUNT).map(|at| at * 7 % COUNT).collect();
    let in_order: Vec<usize> = (0..COUNT).collect();
    let backwards: Vec<usize> = (0..COUNT).rev().collect();
    for (up, down) in [(&in_order, &backwards), (&backwards, &in_order)] {
        layers.number();
        let copy = setup.manager.copy_blocks((&layers.host, up), (&layers.device, &scattered), BYTES);
        let sent = copy.unwrap().submit();
        // Come after what they would overwrite.
        for pool in &layers.host {
            drop(setup.manager.copy(&zeros, pool).submit());
        }
        let copy = setup.manager.copy_blocks((&layers.device, &scattered), (&layers.host, down), BYTES);
        let report = copy.unwrap().wait().unwrap();
        for report in [&sent.wait().unwrap(), &report] {
            assert_eq!((report.pairs, report.bytes), (2 * COUNT, (2 * COUNT * BYTES) as u64));
            let [group] = report.groups.as_slice() else { panic!("{report:#}") };
            assert_eq!((group.through_device, group.chunks), (true, 2 * COUNT as u32), "{report:#}");
        }
        layers.check(up, down, "there and back");
    }
}

#[test]
fn blocks_between_those_that_go_through_device_memory_stay_as_they_are() {
    const BYTES: usize = 8_000;
    const COUNT: usize = 400;
    let setup = Setup::new();
    let layers = Layers::new(&setup, (BYTES, COUNT));
    layers.number();
    let all: Vec<usize> = (0..COUNT).collect();
    setup.manager.copy_blocks((&layers.host, &all), (&layers.device, &all), BYTES).unwrap().wait().unwrap();
    // Runs of nine with a block between two of them; each source block twice.
    let (others, to): (Vec<usize>, Vec<usize>) = all.iter().partition(|index| *index % 10 == 9);
    let from: Vec<usize> = (0..to.len()).map(|at| at * 7 % to.len() / 2).collect();
    let trace = trace::start();
    let copy = setup.manager.copy_blocks((&layers.device, &from), (&layers.host, &to), BYTES);
    let transfer = copy.unwrap().submit();
    let calls = trace.calls_of_this_thread();
    drop(trace);
    assert_eq!(calls.iter().filter(|call| call.name.starts_with("cuLaunchKernel")).count(), 1);
    let free = layers.host[1].slice(9 * BYTES..10 * BYTES).unwrap();
    assert!(free.try_write().is_ok(), "a block that is not in the list");
    let report = transfer.wait().unwrap();
    assert!(report.groups[0].through_device, "{report:#}");
    layers.check(&from, &to, "taken twice");
    layers.check(&others, &others, "not in the list");
}

/// As many as a chunk of 64 MiB has of 4 KiB: beside other kernels, each launch would wait for a place.
#[test]
fn chunk_of_short_blocks_is_one_launch() {
    const COUNT: usize = 16_384;
    const BYTES: usize = 100;
    let setup = Setup::new();
    let content = noise(COUNT * BYTES, 32);
    let (host, back) =
        (setup.filled(MemoryKind::Pinned, &content), setup.allocate(MemoryKind::Pinned, content.len()));
    let device = setup.allocate(MemoryKind::Device, content.len());
    let [host, device, target] = [&host, &device, &back].map(std::slice::from_ref);
    let (near, far): (Vec<usize>, Vec<usize>) = (0..COUNT).map(|at| (at, at * 7 % COUNT)).unzip();
    for (from, to) in [((host, &near), (device, &far)), ((device, &far), (target, &near))] {
        let trace = trace::start();
        let copy = setup.manager.copy_blocks((from.0, from.1), (to.0, to.1), BYTES).unwrap().submit();
        let calls = trace.calls_of_this_thread();
        drop(trace);
        assert!(copy.wait().unwrap().groups[0].through_device);
        assert_eq!(calls.iter().filter(|call| call.name.starts_with("cuLaunchKernel")).count(), 1);
    }
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn few_blocks_of_each_of_many_neighbouring_pools_are_one_stretch() {
    const BYTES: usize = 12_000;
    const LAYERS: usize = 64;
    let setup = Setup::new();
    let content = noise(LAYERS * 3 * BYTES, 31);
    let (host, back) =
        (setup.filled(MemoryKind::Pinned, &content), setup.allocate(MemoryKind::Pinned, content.len()));
    let device = setup.allocate(MemoryKind::Device, 2 * content.len());
    let layers = |of: &RawBuffer, blocks: usize| -> Vec<RawBuffer> {
        (0..LAYERS)
            .map(|layer| of.slice(layer * blocks * BYTES..(layer + 1) * blocks * BYTES).unwrap())
            .collect()
    };
    let [near, far, target] = [layers(&host, 3), layers(&device, 6), layers(&back, 3)];
    let calls_of = |up: bool| {
        let copy = if up {
            setup.manager.copy_blocks((&near, &[0, 1, 2]), (&far, &[5, 0, 3]), BYTES).unwrap()
        } else {
            setup.manager.copy_blocks((&far, &[3, 5, 0]), (&target, &[2, 0, 1]), BYTES).unwrap()
        };
        let trace = trace::start();
        let transfer = copy.submit();
        let calls = trace.calls_of_this_thread();
        drop(trace);
        let report = transfer.wait().unwrap();
        assert!(report.groups[0].through_device, "{report:#}");
        let copies = calls.iter().filter(|call| call.name.starts_with("cuMemcpy")).count();
        assert_eq!(copies, 1, "the pools follow each other, if need be in another order");
        assert_eq!(calls.iter().filter(|call| call.name.starts_with("cuLaunchKernel")).count(), 1);
        calls.iter().filter(|call| call.name == "cuMemHostAlloc").count()
    };
    // Those that no longer fit the rest of their stream's page find it idle.
    let pages: usize = (0..130).map(|_| calls_of(true)).sum();
    assert_eq!(pages, 1);
    calls_of(false);
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn blocks_of_overlapping_pools_go_through_device_memory_as_pairs() {
    const BYTES: usize = 8_000;
    const COUNT: usize = 400;
    let setup = Setup::new();
    let layers = Layers::new(&setup, (BYTES, COUNT));
    layers.number();
    // The second pool begins within the first one; even blocks of both are apart.
    let whole = setup.allocate(MemoryKind::Device, 2 * COUNT * BYTES + BYTES);
    let pools = [0, BYTES].map(|at| whole.slice(at..at + 2 * COUNT * BYTES).unwrap());
    let (from, to): (Vec<usize>, Vec<usize>) = (0..COUNT).map(|index| (index, 2 * index)).unzip();
    for wanted in [None, Some(ListWay::ThroughDevice)] {
        let copy = |copy: transload::Result<CopyManyBuilder<'_>>| {
            let copy = copy.unwrap();
            let copy = if let Some(way) = wanted { copy.way(way) } else { copy };
            assert!(copy.wait().unwrap().groups[0].through_device);
        };
        copy(setup.manager.copy_blocks((&layers.host, &from), (&pools, &to), BYTES));
        layers.host.iter().for_each(|pool| pool.write().unwrap().fill(1));
        copy(setup.manager.copy_blocks((&pools, &to), (&layers.host, &from), BYTES));
        layers.check(&from, &from, "there and back");
    }
}

#[test]
fn blocks_of_pools_that_overlap_arrive() {
    let setup = Setup::new();
    for way in [None, Some(ListWay::CopyKernel)] {
        let mut cache = Cache::new(&setup, MemoryKind::Device, 12);
        let copy =
            setup.manager.copy_blocks((&cache.pools, &FROM), (&cache.pools, &[1, 3, 4, 5, 6, 9]), BLOCK);
        let copy = copy.unwrap();
        let copy = if let Some(way) = way { copy.way(way) } else { copy };
        copy.wait().unwrap();
        let before = Cache { pools: Vec::new(), content: cache.content.clone() };
        cache.take(&[1, 3, 4, 5, 6, 9], &before, &FROM);
        cache.check(&setup.manager, "within the pools");
        // A block that is read and written.
        let copy =
            setup.manager.copy_blocks((&cache.pools, &[1, 2]), (&cache.pools, &[3, 1]), BLOCK).unwrap();
        let copy = if let Some(way) = way { copy.way(way) } else { copy };
        let failed = copy.wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Overlap);
        // Of whichever layer is compared first.
        assert!(matches!(failed.pairs[..], [one, next] if one % 2 == 0 && next == one + 1), "{failed}");
        cache.check(&setup.manager, "nothing was copied");
    }
}

#[test]
fn recorded_blocks_are_one_launch_in_order() {
    let setup = Setup::new();
    for (from, to, exclusive, kernel) in [
        (MemoryKind::Pinned, MemoryKind::Device, true, true),
        (MemoryKind::Device, MemoryKind::Mapped, true, true),
        (MemoryKind::Device, MemoryKind::Device, false, true),
        (MemoryKind::Pinned, MemoryKind::Device, false, false),
    ] {
        let (mut source, mut target) = (Cache::new(&setup, from, 3), Cache::new(&setup, to, 4));
        let copy = setup.manager.copy_blocks((&source.pools, &FROM), (&target.pools, &TO), BLOCK).unwrap();
        let recorded = if exclusive { copy.exclusive().record() } else { copy.record() }.unwrap();
        target.check(&setup.manager, "nothing is copied before a replay");
        let method = if kernel && from != to { TransferMethod::ZeroCopy } else { TransferMethod::DirectCopy };
        assert!(recorded.planned().all(|group| group.method == method), "{from} → {to}");
        for round in 0..3 {
            source.content.iter_mut().for_each(|content| content.rotate_left(1 + round));
            source.write(&setup.manager);
            let trace = trace::start();
            // Twice, with one in flight.
            drop(recorded.replay());
            let replay = recorded.replay();
            let calls = trace.calls_of_this_thread();
            let count = |name: &str| calls.iter().filter(|call| call.name == name).count();
            let launches = if kernel { 2 } else { 0 };
            assert_eq!((count("cuGraphLaunch"), count("cuMemHostAlloc")), (launches, 0), "{from} → {to}");
            drop(trace);
            target.take(&TO, &source, &FROM);
            target.check(&setup.manager, &format!("{from} → {to}, round {round}"));
            let report = replay.wait().unwrap();
            assert_eq!(
                (report.bytes, report.groups[0].chunks),
                ((LAYERS * 6 * BLOCK) as u64, LAYERS as u32 * 6)
            );
        }
    }
}

#[test]
fn recorded_blocks_keep_their_pools() {
    let setup = Setup::new();
    let (source, mut target) =
        (Cache::new(&setup, MemoryKind::Pinned, 5), Cache::new(&setup, MemoryKind::Device, 6));
    let copy = setup.manager.copy_blocks((&source.pools, &FROM), (&target.pools, &TO), BLOCK).unwrap();
    let recorded = copy.exclusive().record().unwrap();
    target.take(&TO, &source, &FROM);
    drop(source);
    let fence = recorded.replay().fences().next().unwrap().clone();
    drop(recorded);
    target.check(&setup.manager, "the list was dropped in flight");
    fence.wait().unwrap();
}

#[test]
fn bytes_between_blocks_are_not_in_use() {
    let setup = Setup::new();
    let (source, target) =
        (Cache::new(&setup, MemoryKind::Pinned, 7), Cache::new(&setup, MemoryKind::Device, 8));
    let copy = setup.manager.copy_blocks((&source.pools, &FROM), (&target.pools, &TO), BLOCK).unwrap();
    let recorded = copy.exclusive().record().unwrap();
    // Blocks 1 and 3 to 6 are not in the list.
    let free = [1, 3, 6].map(|index| source.pools[0].slice(index * BLOCK..(index + 1) * BLOCK).unwrap());
    let views = free.each_ref().map(|block| block.write().unwrap());
    recorded.replay().wait().unwrap();
    drop(views);
    let block = source.pools[0].slice(8 * BLOCK..8 * BLOCK + 1).unwrap();
    let view = block.write().unwrap();
    assert_eq!(recorded.replay().wait().unwrap_err().error.kind(), ErrorKind::Busy);
    drop(view);
    recorded.replay().wait().unwrap();
}

#[test]
fn refused_blocks_are_named() {
    let setup = Setup::new();
    let (source, target) =
        (Cache::new(&setup, MemoryKind::Pinned, 9), Cache::new(&setup, MemoryKind::Device, 10));
    let refused = |from: &[usize], to: &[usize], layers: usize, bytes: usize| {
        let copy = setup.manager.copy_blocks((&source.pools, from), (&target.pools[..layers], to), bytes);
        let error = copy.unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = refused(&[1, 50], &[1, 2], LAYERS, BLOCK);
    assert_eq!(kind, ErrorKind::OutOfRange);
    assert!(text.contains("source block 50, at position 1") && text.contains("below 50"), "{text}");
    let (kind, text) = refused(&[1, 2], &[usize::MAX, 2], LAYERS, BLOCK);
    assert_eq!(kind, ErrorKind::OutOfRange);
    assert!(text.contains("position 0") && text.starts_with("destination"), "{text}");
    let (kind, text) = refused(&[1, 1, 2, 3], &[5, 2, 7, 2], LAYERS, BLOCK);
    assert_eq!(kind, ErrorKind::Overlap);
    assert!(text.contains("block 2 is given twice, at positions 1 and 3"), "{text}");
    assert_eq!(refused(&[1], &[1, 2], LAYERS, BLOCK).0, ErrorKind::InvalidArgument);
    assert_eq!(refused(&[1], &[1], 2, BLOCK).0, ErrorKind::InvalidArgument);
    assert_eq!(refused(&[1], &[1], LAYERS, 0).0, ErrorKind::InvalidArgument);
    assert_eq!(refused(&[0], &[0], LAYERS, usize::MAX).0, ErrorKind::OutOfRange);
    // One pool on both sides: a block is read and written.
    let copy = setup.manager.copy_blocks((&target.pools, &[1, 2]), (&target.pools, &[3, 1]), BLOCK).unwrap();
    let failed = copy.clone().wait().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Overlap);
    assert!(copy.record().is_ok(), "recorded transfers take effect in their order");
    let stream = CudaStream::new(&CudaDevice::new(setup.device.ordinal()).unwrap()).unwrap();
    let copy = setup.manager.copy_blocks((&source.pools, &FROM), (&target.pools, &TO), BLOCK).unwrap();
    assert_eq!(copy.clone().on(&stream).record().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let blocks = |layers: usize, indices: &'static [usize]| {
        let sides = (&source.pools[..layers], &target.pools[..layers]);
        setup.manager.copy_blocks((sides.0, indices), (sides.1, indices), BLOCK).unwrap()
    };
    for none in [blocks(LAYERS, &[]), blocks(0, &[usize::MAX])] {
        assert_eq!(none.wait().unwrap().bytes, 0);
    }
    drop(copy);
    source.check(&setup.manager, "nothing was copied");
    target.check(&setup.manager, "nothing was copied");
}
