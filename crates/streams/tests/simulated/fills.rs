//! Fills on a driver that fails, rejects the kernel, or checks for races.

use transload_core::{
    MemoryKind, Operation, Pattern, RawBuffer, Result, StreamPriority, Timing, fill, submit,
};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{AdvancedStreamPool, CudaGraph, CudaStream};

use crate::{builder, shifted::shifted, with_each_call_failing};

const WIDE: [Pattern; 2] =
    [Pattern::U64(0x0102_0304_0506_0708), Pattern::U128(0x0102_0304_0506_0708_090A_0B0C)];

fn content(memory: &CudaMemoryManager, stream: &CudaStream, there: &RawBuffer) -> Vec<u8> {
    let back = memory.allocate(MemoryKind::Pinned, there.len()).unwrap();
    stream.copy_to_host_async(there, &back).wait().unwrap();
    back.read().unwrap().to_vec()
}

fn is_filled(bytes: &[u8], pattern: Pattern) -> bool {
    bytes.chunks(16).all(|chunk| *chunk == pattern.repeated()[..chunk.len()])
}

#[test]
fn wide_fills_are_ordered_with_other_streams_fifty_seeds() {
    for seed in 0..50 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
        let there = memory.allocate(MemoryKind::Device, 300_000).unwrap();
        let again = memory.allocate(MemoryKind::Device, 300_000).unwrap();
        drop(streams[0].memset_async(&there, WIDE[0]));
        drop(streams[1].copy_device_to_device_async(&there, &again));
        drop(streams[2].memset_async(&there, WIDE[1]));
        drop(fill(&streams[0], &there.slice(3..3_003).unwrap(), &[1, 2, 3]).unwrap());
        let seen = content(&memory, &streams[1], &there);
        assert!(seen[3..3_003].chunks(3).all(|chunk| *chunk == [1, 2, 3]), "seed {seed}");
        assert!(is_filled(&seen[3_008..], WIDE[1]), "seed {seed}");
        assert!(is_filled(&content(&memory, &streams[2], &again), WIDE[0]), "seed {seed}");
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
    }
}

#[test]
fn race_check_sees_every_byte_of_a_wide_fill() {
    for (from, bytes, races) in [(0, 16, true), (800, 8, true), (1_592, 8, true), (1_600, 8, false)] {
        let sim = builder().record_accesses(true).build();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let (one, two) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
        let there = memory.allocate(MemoryKind::Device, 2_000).unwrap();
        let address = there.device_address().unwrap();
        // SAFETY: the buffer outlives the work; its contents are not read.
        unsafe {
            one.memset_raw_async(address, WIDE[0], 1_600).unwrap();
            two.memset_raw_async(address + from, WIDE[0], bytes).unwrap();
        }
        assert_eq!(sim.races().len(), usize::from(races), "{bytes} bytes from {from} on");
        one.synchronize().unwrap();
        two.synchronize().unwrap();
    }
}

#[test]
fn each_failing_call_of_fills_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> Result<()> {
        let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
        let there = memory.allocate(MemoryKind::Device, 5_008)?;
        drop(fill(&one, &there.slice(1..4_999)?, &[1, 2, 3, 4, 5, 6, 7])?);
        fill(&two, &there, &[1, 2, 3, 4, 5, 6, 7, 8])?;
        there.wait_idle()
    }
    with_each_call_failing(scenario);
}

#[test]
fn fill_falls_back_to_copies_if_the_kernel_is_rejected() {
    for code in [209, 218, 221, 222, 223] {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let there = memory.allocate(MemoryKind::Device, 10_000).unwrap();
        sim.fail_call(Some("cuModuleLoadDataEx"), 1, code);
        let trace = transload_cuda_sys::trace::start();
        for pattern in WIDE {
            for bytes in [16, 32, 48, 9_984] {
                let part = there.slice(16..16 + bytes).unwrap();
                drop(stream.memset_async(&there, Pattern::U8(0xEE)));
                drop(stream.memset_async(&part, pattern));
                let seen = content(&memory, &stream, &there);
                assert!(is_filled(&seen[16..16 + bytes], pattern), "{code}: {bytes} bytes of {pattern:?}");
                assert!(seen[..16].iter().chain(&seen[16 + bytes..]).all(|byte| *byte == 0xEE));
            }
        }
        let calls = trace.calls_of_this_thread();
        assert_eq!(calls.iter().filter(|call| call.name == "cuModuleLoadDataEx").count(), 1);
        assert!(calls.iter().all(|call| call.name != "cuLaunchKernel"));
        assert!(sim.races().is_empty());
    }
}

#[test]
fn graph_records_a_wide_fill_without_the_kernel() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 10_000).unwrap();
    for pattern in WIDE {
        sim.fail_call(Some("cuModuleLoadDataEx"), 1, 222);
        let part = there.slice(..9_984).unwrap();
        let operations = [Operation::Fill { dst: &part, pattern }];
        let graph = CudaGraph::record(&device, StreamPriority::Normal, &operations).unwrap();
        assert!(graph.nodes() > 2, "{} memsets and copies", graph.nodes());
        graph.launch(&stream).unwrap();
        assert!(is_filled(&content(&memory, &stream, &part), pattern));
    }
}

#[test]
fn memory_of_a_partly_failed_fill_outlives_its_work() {
    for nth in 1..8 {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let there = memory.allocate(MemoryKind::Device, 1 << 20).unwrap();
        sim.fail_call(Some("cuModuleLoadDataEx"), 1, 222);
        sim.fail_call(Some("cuMemcpyDtoDAsync_v2"), nth, 999);
        let error = stream.memset_async(&there, WIDE[1]).wait().unwrap_err();
        assert!(error.to_string().contains("999"), "{error}");
        drop(there);
        stream.memset_async(&memory.allocate(MemoryKind::Device, 1 << 20).unwrap(), WIDE[0]).wait().unwrap();
        assert!(sim.races().is_empty());
    }
}

#[test]
fn stream_ending_before_its_fill_keeps_the_module_loaded() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 5 << 20).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    drop(stream.memset_async(&there, WIDE[0]));
    drop((stream, there));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn a_prepared_pool_loads_nothing_when_it_fills() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let pool = AdvancedStreamPool::new(&device).unwrap();
    pool.prepare_in_place().unwrap();
    let there = memory.allocate(MemoryKind::Device, 64).unwrap();
    let trace = transload_cuda_sys::trace::start();
    for pattern in WIDE {
        let queue = pool.get_priority_stream(StreamPriority::Normal).unwrap().into_queue();
        submit(&*queue, &Operation::Fill { dst: &there, pattern }, Timing::Off).unwrap();
    }
    let calls = trace.calls_of_this_thread();
    assert!(calls.iter().all(|call| !call.name.starts_with("cuModule")), "{calls:?}");
    pool.synchronize().unwrap();
}

#[test]
fn unaligned_memory_is_filled_without_the_kernel() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 1_000).unwrap();
    sim.fail_call(Some("cuModuleLoadDataEx"), 1, 222);
    for pattern in [Pattern::U16(0x0102), Pattern::U32(0x0102_0304), WIDE[0], WIDE[1]] {
        for shift in [1, 2, 3, 4] {
            let foreign = shifted(&there, shift, &std::sync::Arc::default());
            for bytes in [16, 48, 800] {
                drop(stream.memset_async(&there, Pattern::U8(0xEE)));
                stream.memset_async(&foreign.slice(16..16 + bytes).unwrap(), pattern).wait().unwrap();
                let seen = content(&memory, &stream, &there);
                let (before, rest) = seen.split_at(16 + shift);
                assert!(is_filled(&rest[..bytes], pattern), "{bytes} bytes of {pattern:?} from {shift} on");
                assert!(before.iter().chain(&rest[bytes..]).all(|byte| *byte == 0xEE));
            }
        }
    }
}
