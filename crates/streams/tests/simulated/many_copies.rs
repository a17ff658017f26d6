//! Batches on a driver that fails, refuses the call for many copies, or checks for races.

use transload_core::{
    BlockList, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, submit, submit_blocks,
};
use transload_cuda_sys::trace;
use transload_memory::{CudaDevice, CudaMemoryManager, PinnedLimit};
use transload_streams::{CudaGraph, CudaStream};

use crate::{UNKNOWN, builder, with_each_call_failing, within};

const NOT_SUPPORTED: u32 = 801;
/// More copies than one driver call has.
const MANY: usize = 1100;
const BYTES: usize = 16;

struct Pools {
    device: CudaDevice,
    memory: CudaMemoryManager,
    host: RawBuffer,
    there: RawBuffer,
    pairs: Vec<(RawBuffer, RawBuffer)>,
    /// Bytes of a piece.
    bytes: usize,
}

impl Pools {
    /// `count` short pieces, in reverse order on the device.
    fn new(ordinal: u32, count: usize, limit: u64) -> Self {
        Self::of(ordinal, (count, BYTES), limit)
    }

    fn of(ordinal: u32, (count, bytes): (usize, usize), limit: u64) -> Self {
        let device = CudaDevice::new(ordinal).unwrap();
        let memory = CudaMemoryManager::new_with_pinned_limit(&device, &PinnedLimit::new(limit)).unwrap();
        let [host, there] = [MemoryKind::Mapped, MemoryKind::Device]
            .map(|kind| memory.allocate(kind, count * bytes).unwrap());
        for (index, piece) in host.write().unwrap().chunks_mut(bytes).enumerate() {
            piece.fill(index as u8);
        }
        let part = |of: &RawBuffer, index: usize| of.slice(index * bytes..(index + 1) * bytes).unwrap();
        let pairs = (0..count).map(|index| (part(&host, index), part(&there, count - 1 - index))).collect();
        Self { device, memory, host, there, pairs, bytes }
    }

    /// The same pieces by their indices.
    fn blocks(&self) -> BlockList {
        let from: Vec<usize> = (0..self.pairs.len()).collect();
        let to: Vec<usize> = from.iter().rev().copied().collect();
        BlockList::new([(&self.host, &self.there)].into_iter(), (&from, &to), self.bytes).unwrap()
    }

    fn check(&self, stream: &CudaStream) {
        let back = self.memory.allocate(MemoryKind::Pinned, self.there.len()).unwrap();
        stream.copy_to_host_async(&self.there, &back).wait().unwrap();
        let view = back.read().unwrap();
        for (index, piece) in view.chunks(self.bytes).rev().enumerate() {
            assert!(piece.iter().all(|byte| *byte == index as u8), "piece {index}");
        }
    }
}

#[test]
fn refused_batch_is_copied_one_by_one() {
    for code in [1, NOT_SUPPORTED] {
        let sim = builder().record_accesses(true).checked();
        let pools = Pools::new(sim.ordinal(), MANY, u64::MAX);
        let stream = CudaStream::new(&pools.device).unwrap();
        sim.fail_call(Some("cuMemcpyBatchAsync_v2"), 2, code);
        submit(&stream, &Operation::CopyBatch { pairs: &pools.pairs }, Timing::Off).unwrap();
        pools.check(&stream);
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    }
}

#[test]
fn failed_call_of_a_batch_waits_for_earlier_ones() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let pools = Pools::new(sim.ordinal(), MANY, u64::MAX);
        let stream = CudaStream::new(&pools.device).unwrap();
        sim.fail_call(Some("cuMemcpyBatchAsync_v2"), 2, UNKNOWN);
        let batch = Operation::CopyBatch { pairs: &pools.pairs };
        assert_eq!(submit(&stream, &batch, Timing::Off).unwrap_err().kind(), ErrorKind::Device);
        assert_eq!(sim.queued(), 0, "the first call may still read memory that is free to be used again");
        pools.host.try_write().unwrap().fill(3);
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    });
}

#[test]
fn lists_are_not_written_while_a_kernel_reads_them() {
    for seed in 0..30 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let pools = Pools::new(sim.ordinal(), 60, u64::MAX);
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&pools.device).unwrap()).collect();
        for (stream, pairs) in streams.iter().cycle().zip(pools.pairs.chunks(5)) {
            submit(stream, &Operation::CopyBatchInPlace { pairs }, Timing::Off).unwrap();
        }
        pools.check(&streams[0]);
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
    }
}

#[test]
fn list_is_not_written_after_a_failed_query() {
    for seed in 0..30 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let pools = Pools::new(sim.ordinal(), 60, u64::MAX);
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&pools.device).unwrap()).collect();
        for (stream, pairs) in streams.iter().cycle().zip(pools.pairs.chunks(5)) {
            sim.fail_call(Some("cuEventQuery"), 1, UNKNOWN);
            let batch = Operation::CopyBatchInPlace { pairs };
            // The failed query may also be one of the stream's own.
            while submit(stream, &batch, Timing::Off).is_err() {}
        }
        pools.check(&streams[0]);
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
    }
}

#[test]
fn list_outlives_its_stream_and_buffers() {
    let sim = builder().record_accesses(true).checked();
    let pools = Pools::new(sim.ordinal(), 60, u64::MAX);
    let stream = CudaStream::new(&pools.device).unwrap();
    drop(submit(&stream, &Operation::CopyBatchInPlace { pairs: &pools.pairs }, Timing::Off).unwrap());
    let Pools { device, memory, host, there, pairs, .. } = pools;
    drop((stream, host, there, pairs));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}

#[test]
fn batch_without_memory_for_its_list_is_launched_one_by_one() {
    let sim = builder().checked();
    // Room for the pool and for what `check` downloads to.
    let pools = Pools::new(sim.ordinal(), 60, 200_000);
    let stream = CudaStream::new(&pools.device).unwrap();
    let trace = trace::start();
    submit(&stream, &Operation::CopyBatchInPlace { pairs: &pools.pairs }, Timing::Off).unwrap();
    let calls = trace.calls_of_this_thread();
    assert_eq!(calls.iter().filter(|call| call.name == "cuLaunchKernel").count(), 60);
    assert!(calls.iter().all(|call| call.name != "cuMemHostAlloc"), "the limit is kept");
    pools.check(&stream);
}

#[test]
fn batch_that_outgrows_its_list_is_complete() {
    const COUNT: usize = 22_000;
    let launches = |seed| {
        let sim = builder().seed(seed).checked();
        // Room for the pool and one page, of 21,845 pieces.
        let pools = Pools::new(sim.ordinal(), COUNT, (COUNT * BYTES + (512 << 10)) as u64);
        let stream = CudaStream::new(&pools.device).unwrap();
        let trace = trace::start();
        let batch = Operation::CopyBatchInPlace { pairs: &pools.pairs };
        submit(&stream, &batch, Timing::Off).unwrap().wait().unwrap();
        let calls = trace.calls_of_this_thread();
        pools.check(&stream);
        calls.iter().filter(|call| call.name == "cuLaunchKernel").count()
    };
    let found: Vec<usize> = (0..4).map(launches).collect();
    // One by one, unless the first kernel was over before the rest of the list was written: its page is used again then.
    let one_by_one = 1 + COUNT - 21_845;
    assert!(found.iter().all(|count| [2, one_by_one].contains(count)), "{found:?}");
    assert!(found.contains(&one_by_one), "{found:?}");
}

/// Pieces of a list that is launched in three parts, of 128, 512, and the rest; or in nine that may overlap, of 128 at first.
const IN_PARTS: (usize, usize) = (1_500, 1024);
/// Compute capabilities without overlapping launches and with them, and the call of every launch but the first.
const CAPABILITIES: [(i32, &str); 2] = [(8, "cuLaunchKernel"), (9, "cuLaunchKernelEx")];

#[test]
fn long_list_is_launched_in_parts() {
    for (seed, (major, later)) in (0..10).flat_map(|seed| CAPABILITIES.map(|capability| (seed, capability))) {
        let sim = builder().seed(seed).record_accesses(true).compute_capability(major, 0).checked();
        let pools = Pools::of(sim.ordinal(), IN_PARTS, u64::MAX);
        let stream = CudaStream::new(&pools.device).unwrap();
        let trace = trace::start();
        // More than one page.
        for _ in 0..8 {
            let batch = Operation::CopyBatchInPlace { pairs: &pools.pairs };
            drop(submit(&stream, &batch, Timing::Off).unwrap());
            drop(submit_blocks(&stream, &pools.blocks(), Timing::Off).unwrap());
        }
        let calls = trace.calls_of_this_thread();
        let [firsts, launches] =
            ["cuLaunchKernel", later].map(|name| calls.iter().filter(|call| call.name == name).count());
        if major < 9 {
            assert_eq!(launches, 16 * 3 + 1, "one list goes on in the next page");
        } else {
            assert_eq!((firsts, launches), (16, 16 * 8 + 1), "one list goes on in the next page");
        }
        pools.check(&stream);
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
    }
}

/// A list of many launches, behind others, would fill a driver's launch queue.
#[test]
fn list_behind_much_other_work_is_one_launch() {
    for (major, later) in CAPABILITIES {
        let sim = builder().record_accesses(true).compute_capability(major, 0).checked();
        let pools = Pools::of(sim.ordinal(), IN_PARTS, u64::MAX);
        let stream = CudaStream::new(&pools.device).unwrap();
        let batch = Operation::CopyBatchInPlace { pairs: &pools.pairs };
        let launches = || {
            let trace = trace::start();
            drop(submit(&stream, &batch, Timing::Off).unwrap());
            let calls = trace.calls_of_this_thread();
            calls.iter().filter(|call| ["cuLaunchKernel", later].contains(&call.name)).count()
        };
        let first = launches();
        assert!(first > 1);
        // The end of none of them is asked for.
        let (src, dst) = &pools.pairs[0];
        (0..16).for_each(|_| drop(stream.copy_from_host_async(src, dst)));
        assert_eq!(launches(), 1);
        stream.synchronize().unwrap();
        assert_eq!(launches(), first);
        pools.check(&stream);
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    }
}

#[test]
fn short_lists_are_one_launch() {
    let sim = builder().checked();
    for (count, bytes, kind) in
        [(400, 1024, MemoryKind::Mapped), (2_000, 512, MemoryKind::Mapped), (1_500, 1024, MemoryKind::Device)]
    {
        let pools = Pools::of(sim.ordinal(), (count, bytes), u64::MAX);
        let other = pools.memory.allocate(kind, count * bytes).unwrap();
        let part = |(_, piece): &(RawBuffer, RawBuffer)| {
            (piece.clone(), other.slice(piece.offset()..piece.offset() + bytes).unwrap())
        };
        let mut pairs: Vec<_> = pools.pairs.iter().map(part).collect();
        // No neighbours on the other side.
        pairs.reverse();
        pairs.swap(0, count / 2);
        let stream = CudaStream::new(&pools.device).unwrap();
        let trace = trace::start();
        submit(&stream, &Operation::CopyBatchInPlace { pairs: &pairs }, Timing::Off).unwrap().wait().unwrap();
        let calls = trace.calls_of_this_thread();
        let launches = calls.iter().filter(|call| call.name == "cuLaunchKernel").count();
        assert_eq!(launches, 1, "{count} of {bytes} bytes within {kind}");
    }
}

#[test]
fn failed_launch_of_a_part_waits_for_earlier_ones() {
    for (major, later) in CAPABILITIES {
        for (seed, nth) in (0..10).flat_map(|seed| [2, 3].map(|nth| (seed, nth))) {
            let sim = builder().seed(seed).record_accesses(true).compute_capability(major, 0).checked();
            let pools = Pools::of(sim.ordinal(), IN_PARTS, u64::MAX);
            let stream = CudaStream::new(&pools.device).unwrap();
            let batch = Operation::CopyBatchInPlace { pairs: &pools.pairs };
            let blocks = pools.blocks();
            for round in 0..4 {
                // That of the first launch is not counted among the others.
                let nth = if major < 9 { nth } else { nth - 1 };
                sim.fail_call(Some(later), nth, UNKNOWN);
                let failed = match round % 2 {
                    0 => submit(&stream, &batch, Timing::Off),
                    _ => submit_blocks(&stream, &blocks, Timing::Off),
                };
                let failed = failed.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::Device, "launch {nth}");
                assert_eq!(
                    sim.queued(),
                    0,
                    "the first part may still read memory that is free to be used again"
                );
                pools.host.try_write().expect("no claim is left")[0] = 0;
            }
            submit(&stream, &batch, Timing::Off).unwrap();
            pools.check(&stream);
            assert!(sim.races().is_empty(), "launch {nth}, seed {seed}: {}", sim.races()[0]);
        }
    }
}

#[test]
fn neighbours_without_memory_for_their_list_are_one_launch() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    // Room for the source.
    let memory =
        CudaMemoryManager::new_with_pinned_limit(&device, &PinnedLimit::new((8 << 20) + 4096)).unwrap();
    let [host, there] =
        [MemoryKind::Mapped, MemoryKind::Device].map(|kind| memory.allocate(kind, 8 << 20).unwrap());
    let half = |of: &RawBuffer, index: usize| of.slice(index * (4 << 20)..(index + 1) * (4 << 20)).unwrap();
    let pairs = [0, 1].map(|index| (half(&host, index), half(&there, index)));
    let stream = CudaStream::new(&device).unwrap();
    let trace = trace::start();
    submit(&stream, &Operation::CopyBatchInPlace { pairs: &pairs }, Timing::Off).unwrap().wait().unwrap();
    let calls = trace.calls_of_this_thread();
    assert_eq!(calls.iter().filter(|call| call.name == "cuLaunchKernel").count(), 1);
}

fn recorded(pools: &Pools) -> transload_core::Result<CudaGraph> {
    let batch = Operation::CopyBatchInPlace { pairs: &pools.pairs };
    CudaGraph::record(&pools.device, StreamPriority::Normal, &[batch])
}

#[test]
fn recorded_list_stays_until_its_launches_are_complete() {
    for seed in 0..10 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let mut pools = Pools::new(sim.ordinal(), 60, u64::MAX);
        let stream = CudaStream::new(&pools.device).unwrap();
        let graph = recorded(&pools).unwrap();
        pools.pairs.clear();
        graph.launch(&stream).unwrap();
        drop(graph.launch(&stream).unwrap());
        drop(graph);
        pools.check(&stream);
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
        let Pools { device, memory, host, there, .. } = pools;
        drop((stream, host, there));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop((memory, device));
    }
}

#[test]
fn recording_without_memory_for_its_list_is_refused() {
    const COUNT: usize = 11_000;
    let sim = builder().checked();
    // Room for the pool.
    let pools = Pools::new(sim.ordinal(), COUNT, (COUNT * BYTES + 4096) as u64);
    assert_eq!(recorded(&pools).unwrap_err().kind(), ErrorKind::OutOfMemory);
    pools.host.try_write().expect("no claim is left")[0] = 0;
}

#[test]
fn each_failing_call_of_a_recorded_list_is_a_typed_error() {
    with_each_call_failing(|device, memory| {
        let stream = CudaStream::new(device)?;
        let (host, there) =
            (memory.allocate(MemoryKind::Mapped, 100)?, memory.allocate(MemoryKind::Device, 100)?);
        let pairs = [(host.slice(..40)?, there.slice(60..)?), (host.slice(50..)?, there.slice(..50)?)];
        let batch = Operation::CopyBatchInPlace { pairs: &pairs };
        let graph = CudaGraph::record(device, StreamPriority::Normal, &[batch])?;
        graph.launch(&stream)?;
        graph.launch(&stream)?;
        host.wait_idle()
    });
}

#[test]
fn failing_calls_of_a_batch_in_place_are_typed_errors() {
    for (call, nth) in [("cuLaunchKernel", 1), ("cuEventRecord", 1), ("cuEventRecord", 2)] {
        let sim = builder().record_accesses(true).checked();
        let pools = Pools::new(sim.ordinal(), 60, u64::MAX);
        let stream = CudaStream::new(&pools.device).unwrap();
        let batch = Operation::CopyBatchInPlace { pairs: &pools.pairs };
        for _ in 0..2 {
            sim.fail_call(Some(call), nth, UNKNOWN);
            let failed = submit(&stream, &batch, Timing::Off).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Device, "{call}");
            assert_eq!(sim.queued(), 0, "{call}: nothing may use the buffers any more");
            pools.host.try_write().expect("no claim is left")[0] = 0;
        }
        submit(&stream, &batch, Timing::Off).unwrap();
        pools.check(&stream);
        assert!(sim.races().is_empty(), "{call}: {}", sim.races()[0]);
    }
}

#[test]
fn each_failing_call_of_a_batch_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> transload_core::Result<()> {
        let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
        let (host, there) =
            (memory.allocate(MemoryKind::Pinned, 100)?, memory.allocate(MemoryKind::Device, 100)?);
        let part = |of: &RawBuffer, index: usize| of.slice(index * 10..index * 10 + 9);
        let pairs: transload_core::Result<Vec<_>> =
            (0..10).map(|index| Ok((part(&host, index)?, part(&there, index)?))).collect();
        let pairs = pairs?;
        submit(&one, &Operation::CopyBatch { pairs: &pairs }, Timing::Off)?;
        let back: Vec<_> = pairs.into_iter().map(|(host, there)| (there, host)).collect();
        submit(&two, &Operation::CopyBatch { pairs: &back }, Timing::Off)?;
        host.wait_idle()
    }
    with_each_call_failing(scenario);
}
