//! Lists through device memory with failing driver calls, without memory, and with a device that is lost.

use std::slice;

use transload::{
    CopyManyBuilder, CrossBackendTransferManager, DeviceId, ErrorKind, ListWay, MemoryKind, RawBuffer,
    Result, TransferMethod,
    backend::Pattern,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig, CudaDevice, CudaStream},
};
use transload_cuda_sim::{AccessKind, SimDevice, harness};
use transload_cuda_sys::trace;

use crate::stream_gate::{Gate, limited};

const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_ADDRESS: u32 = 700;
const UNKNOWN: u32 = 999;
pub(crate) const PIECE: usize = 4096;
pub(crate) const COUNT: usize = 260;

pub(crate) fn manager(sim: SimDevice) -> Result<CrossBackendTransferManager> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    Ok(manager)
}

/// Pieces between host memory and scattered places of the device, both ways.
pub(crate) struct Lists {
    pub(crate) up: Vec<(RawBuffer, RawBuffer)>,
    pub(crate) down: Vec<(RawBuffer, RawBuffer)>,
    source: RawBuffer,
    target: RawBuffer,
    device: RawBuffer,
}

impl Lists {
    pub(crate) fn new(
        manager: &CrossBackendTransferManager,
        sim: SimDevice,
        kind: MemoryKind,
        (count, piece): (usize, usize),
    ) -> Result<Self> {
        let cuda = DeviceId::Cuda(sim.ordinal());
        let allocate = |kind| {
            let device = if kind == MemoryKind::Pageable { DeviceId::Cpu } else { cuda };
            manager.allocate_for(device, kind, piece * count)
        };
        let (source, target) = (allocate(kind)?, allocate(kind)?);
        let device = allocate(MemoryKind::Device)?;
        source.write()?.chunks_mut(piece).enumerate().for_each(|(at, piece)| piece.fill(at as u8));
        target.write()?.fill(0xEE);
        let part = |of: &RawBuffer, at: usize| of.slice(at * piece..(at + 1) * piece);
        let near = |host: &RawBuffer| -> Result<Vec<_>> {
            (0..count).map(|at| Ok((part(host, at)?, part(&device, at * 7 % count)?))).collect()
        };
        let (up, down) = (near(&source)?, near(&target)?);
        let down = down.into_iter().map(|(host, device)| (device, host)).collect();
        Ok(Self { up, down, source, target, device })
    }

    pub(crate) fn are_back(&self) -> Result<bool> {
        Ok(*self.target.read()? == *self.source.read()?)
    }
}

/// Pageable memory would go by copy engines where that is faster.
fn many<'a>(
    manager: &'a CrossBackendTransferManager,
    kind: MemoryKind,
    list: &'a [(RawBuffer, RawBuffer)],
) -> CopyManyBuilder<'a> {
    let copy = manager.copy_many(list);
    if kind == MemoryKind::Pageable { copy.way(ListWay::ThroughDevice) } else { copy }
}

#[test]
fn each_failing_call_names_all_pairs_without_race_or_leak() {
    let _alone = crate::alone_with_drop_errors();
    each_failing_call(COUNT, |manager, sim, copied| {
        let lists = Lists::new(manager, sim, MemoryKind::Pinned, (COUNT, PIECE))?;
        copied(manager.copy_many(&lists.up))?;
        copied(manager.copy_many(&lists.down))?;
        lists.are_back()
    });
}

#[test]
fn each_failing_call_of_blocks_names_all_pairs_without_race_or_leak() {
    let _alone = crate::alone_with_drop_errors();
    each_failing_call(COUNT, |manager, sim, copied| {
        let lists = Lists::new(manager, sim, MemoryKind::Pinned, (COUNT, PIECE))?;
        let [source, target, device] = [&lists.source, &lists.target, &lists.device].map(slice::from_ref);
        let (near, far): (Vec<_>, Vec<_>) = (0..COUNT).map(|at| (at, at * 7 % COUNT)).unzip();
        copied(manager.copy_blocks((source, &near), (device, &far), PIECE)?)?;
        copied(manager.copy_blocks((device, &far), (target, &near), PIECE)?)?;
        lists.are_back()
    });
}

#[test]
fn each_failing_call_of_staged_lists_names_all_pairs_without_race_or_leak() {
    let _alone = crate::alone_with_drop_errors();
    // As few as several threads copy, and two driver calls: each run starts threads.
    each_failing_call(72, |manager, sim, copied| {
        let lists = Lists::new(manager, sim, MemoryKind::Pageable, (72, 16 << 10))?;
        copied(many(manager, MemoryKind::Pageable, &lists.up))?;
        copied(many(manager, MemoryKind::Pageable, &lists.down))?;
        lists.are_back()
    });
}

type Copied<'a> = &'a dyn Fn(CopyManyBuilder<'_>) -> Result<()>;

/// Runs copies of lists of so many pieces there and back, which return whether the same bytes came back.
fn each_failing_call(
    count: usize,
    copies: impl Fn(&CrossBackendTransferManager, SimDevice, Copied<'_>) -> Result<bool>,
) {
    let kinds = [ErrorKind::Device, ErrorKind::OutOfMemory, ErrorKind::Unsupported];
    let runs = harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN, OUT_OF_MEMORY],
        &kinds,
        |sim| {
            let manager = manager(sim)?;
            let outcome = copies(&manager, sim, &|copy| {
                copy.wait().map(drop).map_err(|failed| {
                    assert!(failed.pairs.iter().copied().eq(0..count), "{failed}");
                    failed.into()
                })
            });
            // The fault may hit the drain itself, once.
            let (first, second) = (manager.drain(), manager.drain());
            assert!(first.is_ok() || second.is_ok(), "{second:?}");
            assert!(outcome?, "other bytes came back");
            Ok(())
        },
    );
    assert!(runs > 20, "the scenario makes more calls than {runs}");
}

#[test]
fn staged_list_is_moved_by_few_calls_of_one_task() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let lists = Lists::new(&manager, sim, MemoryKind::Pageable, (1000, PIECE)).unwrap();
    for (list, engine, of_host) in [
        (&lists.up, "cuMemcpyHtoDAsync_v2", AccessKind::Read),
        (&lists.down, "cuMemcpyDtoHAsync_v2", AccessKind::Write),
    ] {
        // What is set up at first is done.
        many(&manager, MemoryKind::Pageable, list).wait().unwrap();
        let seen = sim.accesses().len();
        assert!(many(&manager, MemoryKind::Pageable, list).wait().unwrap().groups[0].through_device);
        let accesses = sim.accesses().split_off(seen);
        let staged =
            |access: &&transload_cuda_sim::AccessRecord| access.operation == engine && access.kind == of_host;
        let staged: Vec<u64> = accesses.iter().filter(staged).map(|access| access.address).collect();
        assert!((1..=4).contains(&staged.len()), "{} copies for less than 4 MiB", staged.len());
        // Parts of one buffer, in their order: by one task, which may go on on another thread, but makes one call at a time.
        let bytes = staged.last().zip(staged.first()).map(|(last, first)| last - first);
        assert!(
            staged.is_sorted() && bytes < Some((1000 * PIECE) as u64),
            "calls of several tasks: {staged:x?}"
        );
        let launches = accesses.iter().filter(|access| access.operation == "cuLaunchKernel");
        let mut launches: Vec<_> = launches.map(|access| access.sequence).collect();
        launches.dedup();
        assert_eq!(launches.len(), 1);
    }
    assert!(lists.are_back().unwrap());
    manager.drain().unwrap();
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}

#[test]
fn staged_list_of_several_buffers_arrives_whole() {
    // More than two staging buffers hold, and the end of one within a piece.
    const LENGTH: usize = 9001;
    pub(crate) const COUNT: usize = 1100;
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let lists = Lists::new(&manager, sim, MemoryKind::Pageable, (COUNT, LENGTH)).unwrap();
    for list in [&lists.up, &lists.down] {
        assert!(many(&manager, MemoryKind::Pageable, list).wait().unwrap().groups[0].through_device);
    }
    assert!(lists.are_back().unwrap());
    // Submitted and left alone, so that tasks copy.
    lists.target.write().unwrap().fill(0xEE);
    for list in [&lists.up, &lists.down] {
        drop(many(&manager, MemoryKind::Pageable, list).submit());
    }
    assert!(lists.are_back().unwrap());
    manager.drain().unwrap();
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}

#[test]
fn list_goes_by_the_batch_call_without_scratch_memory() {
    transload_cuda_sim::install().unwrap();
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        without_scratch_memory(kind);
    }
}

fn without_scratch_memory(kind: MemoryKind) {
    let sim = SimDevice::builder().record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let lists = Lists::new(&manager, sim, kind, (COUNT, PIECE)).unwrap();
    for list in [&lists.up, &lists.down] {
        const ASKED: usize = 32;
        for name in ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"].repeat(ASKED) {
            sim.fail_call(Some(name), 1, OUT_OF_MEMORY);
        }
        let report = manager.copy_many(list).wait().unwrap();
        assert!(!report.groups[0].through_device, "{report:#}");
        // The next lists do not try again.
        let trace = trace::start();
        manager.copy_many(list).wait().unwrap();
        let calls = trace.calls_of_this_thread();
        assert!(!calls.iter().any(|call| call.name.starts_with("cuMemAlloc")), "{calls:?}");
    }
    assert!(lists.are_back().unwrap());
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}

#[test]
fn failed_launch_in_the_middle_waits_for_the_first_chunks() {
    // Two chunks.
    const LONG: usize = 30 << 10;
    pub(crate) const COUNT: usize = 2250;
    transload_cuda_sim::install().unwrap();
    for (is_upload, call) in [(true, "cuLaunchKernel"), (false, "cuMemcpyDtoHAsync_v2")] {
        let sim = SimDevice::builder().total_memory(1 << 30).record_accesses(true).build();
        let manager = manager(sim).unwrap();
        let lists = Lists::new(&manager, sim, MemoryKind::Pinned, (COUNT, LONG)).unwrap();
        manager.copy_many(&lists.up).wait().unwrap();
        let list = if is_upload { &lists.up } else { &lists.down };
        sim.fail_call(Some(call), 2, UNKNOWN);
        let failed = manager.copy_many(list).wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Device, "{failed}");
        assert!(failed.pairs.iter().copied().eq(0..COUNT), "{failed}");
        // Nothing that was enqueued uses them any more.
        lists.source.try_write().unwrap().fill(3);
        if !is_upload {
            let read = lists.target.try_read().unwrap_err();
            assert_eq!(read.kind(), ErrorKind::SourceFailed, "{read}");
        }
        lists.target.overwrite().unwrap().fill(4);
        for list in [&lists.up, &lists.down] {
            assert!(manager.copy_many(list).wait().unwrap().groups[0].through_device);
        }
        assert!(lists.are_back().unwrap());
        manager.drain().unwrap();
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    }
}

/// What was gathered for chunks that do not come is still read and written.
#[test]
fn failed_first_chunk_waits_for_the_kernel_before_it() {
    transload_cuda_sim::install().unwrap();
    for seed in 0..16 {
        let sim = SimDevice::builder().seed(seed).record_accesses(true).build();
        let manager = manager(sim).unwrap();
        let lists = Lists::new(&manager, sim, MemoryKind::Pageable, (72, 16 << 10)).unwrap();
        many(&manager, MemoryKind::Pageable, &lists.up).wait().unwrap();
        sim.fail_call(Some("cuMemcpyDtoHAsync_v2"), 1, OUT_OF_MEMORY);
        let outcome = many(&manager, MemoryKind::Pageable, &lists.down).wait();
        let failed = outcome.unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::OutOfMemory, "{failed}");
        // By another stream, which comes after the list.
        let stream = CudaStream::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap();
        for (gathered, _) in &lists.down {
            drop(stream.memset_async(gathered, Pattern::U8(9)));
        }
        stream.synchronize().unwrap();
        many(&manager, MemoryKind::Pageable, &lists.down).wait().unwrap();
        assert!(lists.target.read().unwrap().iter().all(|byte| *byte == 9));
        drop(stream);
        manager.drain().unwrap();
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
    }
}

#[test]
fn chunk_of_blocks_has_parts_of_two_layers() {
    // Two entries of the kernel's list for each. The first of two chunks ends in the second layer.
    const BYTES: usize = 20_000;
    pub(crate) const COUNT: usize = 1_700;
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(1 << 30).record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let layers = |kind, count: usize| {
        [count, COUNT]
            .map(|count| manager.allocate_for(DeviceId::Cuda(sim.ordinal()), kind, count * BYTES).unwrap())
    };
    let [source, target] = [(); 2].map(|()| layers(MemoryKind::Pinned, COUNT));
    let device = layers(MemoryKind::Device, COUNT + 5);
    for (layer, pool) in source.iter().enumerate() {
        pool.write().unwrap().fill(layer as u8);
        let mut view = pool.write().unwrap();
        let blocks = view.chunks_mut(BYTES).enumerate();
        blocks.for_each(|(index, block)| block[BYTES - 2..].copy_from_slice(&(index as u16).to_le_bytes()));
    }
    let in_order: Vec<usize> = (0..COUNT).collect();
    let scattered: Vec<usize> = (0..COUNT).map(|at| at * 7 % COUNT).collect();
    for (from, to) in
        [((&source, &in_order), (&device, &scattered)), ((&device, &scattered), (&target, &in_order))]
    {
        let trace = trace::start();
        let copy = manager.copy_blocks((from.0, from.1), (to.0, to.1), BYTES).unwrap().submit();
        let calls = trace.calls_of_this_thread();
        drop(trace);
        let count = |name: &str| calls.iter().filter(|call| call.name.starts_with(name)).count();
        let copies = count("cuMemcpyHtoDAsync") + count("cuMemcpyDtoHAsync") + count("cuMemcpyBatch");
        assert!(count("cuLaunchKernel") == 2 && (2..=3).contains(&copies), "{calls:?}");
        assert!(copy.wait().unwrap().groups[0].through_device);
    }
    for (source, target) in source.iter().zip(&target) {
        assert!(*target.read().unwrap() == *source.read().unwrap());
    }
    manager.drain().unwrap();
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}

#[test]
fn long_lists_use_the_scratch_buffers_in_turn() {
    // Two chunks, since a chunk may exceed its share by a piece.
    const LENGTH: usize = 20_000;
    pub(crate) const COUNT: usize = 6710;
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(1 << 30).record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let lists = [(), ()].map(|()| Lists::new(&manager, sim, MemoryKind::Pinned, (COUNT, LENGTH)).unwrap());
    let seen = sim.accesses().len();
    let copies = lists.each_ref().map(|list| manager.copy_many(&list.up).submit());
    assert!(copies.into_iter().all(|copy| copy.wait().unwrap().groups[0].through_device));
    let mut filled = sim.accesses().split_off(seen);
    filled.retain(|access| access.operation == "cuMemcpyHtoDAsync_v2" && access.kind == AccessKind::Write);
    filled.sort_unstable_by_key(|access| access.sequence);
    assert!(filled.iter().all(|access| access.actor == filled[0].actor), "one stream fills them: {filled:?}");
    let filled: Vec<u64> = filled.iter().map(|access| access.address).collect();
    let [first, second, third, ..] = filled[..] else { panic!("{filled:?}") };
    assert_eq!(filled, [first, second, third].into_iter().cycle().take(4).collect::<Vec<_>>());
    manager.drain().unwrap();
}

#[test]
fn exclusive_list_leaves_the_link_to_engines_while_as_much_goes_the_other_way() {
    // 5 MiB, and less than 4.
    const LONG: usize = 1280;
    const SHORT: usize = 1000;
    limited(|| {
        transload_cuda_sim::install().unwrap();
        let sim = SimDevice::builder().record_accesses(true).build();
        let manager = manager(sim).unwrap();
        let lists = |count| Lists::new(&manager, sim, MemoryKind::Pinned, (count, PIECE)).unwrap();
        let (long, short, other, apart) = (lists(LONG), lists(SHORT), lists(LONG), lists(2 * LONG));
        let goes_through = |list: &[(RawBuffer, RawBuffer)]| {
            manager.copy_many(list).exclusive().wait().unwrap().groups[0].through_device
        };
        let allocate =
            |kind, bytes| manager.allocate_for(DeviceId::Cuda(sim.ordinal()), kind, bytes).unwrap();
        let memory = |bytes| (allocate(MemoryKind::Device, bytes), allocate(MemoryKind::Pinned, bytes));
        // So few bytes are not counted.
        let ((device, host), (held, of_held)) = (memory(LONG * PIECE), memory(9));
        let gpu = CudaDevice::new(sim.ordinal()).unwrap();
        let stream = CudaStream::new(&gpu).unwrap();
        assert!(!goes_through(&long.up) && !goes_through(&long.down), "nothing goes the other way");
        for is_upload in [true, false] {
            let (list, few, way_back) = match is_upload {
                true => (&long.up, &short.up, &other.down),
                false => (&long.down, &short.down, &other.up),
            };
            for (by_list, share, expected) in
                [(true, 1, true), (false, 1, true), (false, 2, true), (false, 4, false)]
            {
                let gate = Gate::before(&gpu, &[&stream]);
                let blocked = match is_upload {
                    true => manager.copy(&of_held, &held),
                    false => manager.copy(&held, &of_held),
                };
                let blocked = blocked.on(&stream).submit();
                let after = blocked.fence().unwrap();
                let bytes = LONG * PIECE / share;
                let (near, far) = (host.slice(..bytes).unwrap(), device.slice(..bytes).unwrap());
                let (by_kernel, by_engine) = match (by_list, is_upload) {
                    (true, _) => (Some(manager.copy_many(way_back).exclusive().after(after).submit()), None),
                    (false, true) => (None, Some(manager.copy(&far, &near).after(after).submit())),
                    (false, false) => (None, Some(manager.copy(&near, &far).after(after).submit())),
                };
                assert_eq!(goes_through(list), expected, "up: {is_upload}, list: {by_list}, one of {share}");
                assert!(!goes_through(few), "a short list");
                let sparse = if is_upload { &apart.up } else { &apart.down };
                let sparse: Vec<_> = sparse.iter().step_by(2).cloned().collect();
                let report = manager.copy_many(&sparse).exclusive().wait().unwrap();
                assert_eq!(report.groups[0].method, TransferMethod::ZeroCopy, "engines are slow for it");
                let wanted = manager.copy_many(list).exclusive().way(ListWay::CopyKernel).wait().unwrap();
                assert!(!wanted.groups[0].through_device, "a way that is wanted");
                gate.open();
                by_engine.into_iter().for_each(|copy| drop(copy.wait().unwrap()));
                by_kernel
                    .into_iter()
                    .for_each(|copy| assert!(!copy.wait().unwrap().groups[0].through_device));
                blocked.wait().unwrap();
                assert!(!goes_through(list), "the other way is over");
            }
        }
        for lists in [&long, &short] {
            assert!(lists.are_back().unwrap());
        }
        drop(stream);
        manager.drain().unwrap();
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    });
}

#[test]
fn lost_device_fails_the_whole_list() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let manager = manager(sim).unwrap();
    let lists = Lists::new(&manager, sim, MemoryKind::Pinned, (COUNT, PIECE)).unwrap();
    let transfer = manager.copy_many(&lists.up).submit();
    sim.poison(ILLEGAL_ADDRESS);
    drop(transfer);
    let failed = manager.copy_many(&lists.up).wait().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::DeviceLost, "{failed}");
    assert!(failed.pairs.iter().copied().eq(0..COUNT));
    let _lost = manager.drain();
}

#[test]
fn gaps_of_an_upload_are_free_for_others() {
    const GAP: usize = 9;
    const STEP: usize = PIECE + GAP;
    limited(|| {
        transload_cuda_sim::install().unwrap();
        let sim = SimDevice::builder().record_accesses(true).build();
        let manager = manager(sim).unwrap();
        let (cuda, bytes) = (DeviceId::Cuda(sim.ordinal()), COUNT * STEP);
        let allocate = |kind| manager.allocate_for(cuda, kind, bytes).unwrap();
        let (near, far, back) =
            (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device), allocate(MemoryKind::Pinned));
        near.write().unwrap().chunks_mut(STEP).enumerate().for_each(|(at, piece)| piece.fill(at as u8));
        let part = |of: &RawBuffer, at: usize| of.slice(at * STEP..at * STEP + PIECE).unwrap();
        let pairs: Vec<_> = (0..COUNT).map(|at| (part(&near, at), part(&far, at * 7 % COUNT))).collect();
        let gaps: Vec<_> =
            (0..COUNT).map(|at| near.slice(at * STEP + PIECE..(at + 1) * STEP).unwrap()).collect();
        let fill = |with: u8| gaps.iter().for_each(|gap| gap.try_write().unwrap().fill(with));
        manager.copy_many(&pairs).wait().unwrap();
        back.write().unwrap().fill(0xEE);
        manager.copy(&back, &far).wait().unwrap();
        let gpu = CudaDevice::new(sim.ordinal()).unwrap();
        let stream = CudaStream::new(&gpu).unwrap();
        let gate = Gate::before(&gpu, &[&stream]);
        let blocked = manager.copy(&far, &back).on(&stream).submit();
        let list = manager.copy_many(&pairs).after(blocked.fence().unwrap()).submit();
        fill(0xA1);
        assert!(near.try_write().is_err(), "the pieces are in use");
        // A device writes one.
        manager.copy(&far.slice(PIECE..STEP).unwrap(), &gaps[3]).wait().unwrap();
        gate.open();
        (0..=0xA2).for_each(fill);
        assert!(list.wait().unwrap().groups[0].through_device);
        manager.copy(&far, &back).wait().unwrap();
        let (near, back) = (near.read().unwrap(), back.read().unwrap());
        for (at, piece) in near.chunks(STEP).enumerate() {
            assert!(piece[..PIECE].iter().all(|byte| *byte == at as u8) && piece[PIECE..] == [0xA2; GAP]);
            let there = &back[at * 7 % COUNT * STEP..][..STEP];
            assert!(there[..PIECE] == piece[..PIECE] && there[PIECE..] == [0xEE; GAP]);
        }
        // What the engine reads beside the writes of others is never used; the checker cannot know that.
        let address = |gap: &RawBuffer| gap.host_address().unwrap().addr().get() as u64;
        let is_of_gap = |race: &transload_cuda_sim::Race| {
            race.first.operation == "cuMemcpyHtoDAsync_v2"
                && gaps.iter().any(|gap| address(gap) == race.second.address && race.second.bytes == GAP)
        };
        assert!(sim.races().iter().all(is_of_gap), "{:?}", sim.races());
    });
}
