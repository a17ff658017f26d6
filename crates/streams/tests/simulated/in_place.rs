//! Copies by a kernel on a driver that fails, rejects the kernel, or checks for races.

use transload_core::{ErrorKind, MemoryKind, Operation, Pattern, RawBuffer, Timing, submit};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{AdvancedStreamPool, CudaStream};

use crate::{builder, with_each_call_failing};

fn copy(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> transload_core::Result<()> {
    submit(stream, &Operation::CopyInPlace { src, dst }, Timing::Off).map(drop)
}

#[test]
fn in_place_copies_have_no_race_under_fifty_seeds() {
    for seed in 0..50 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
        let buffers: Vec<_> = (0..3).map(|_| memory.allocate(MemoryKind::Device, 300_000).unwrap()).collect();
        let mapped = memory.allocate(MemoryKind::Mapped, 300_000).unwrap();
        mapped.write().unwrap().fill(9);
        for (stream, buffer) in streams.iter().zip(&buffers) {
            copy(stream, &mapped, buffer).unwrap();
        }
        copy(&streams[1], &buffers[0], &buffers[1]).unwrap();
        drop(streams[2].copy_device_to_device_async(&buffers[1], &buffers[2]));
        drop(streams[0].memset_async(&buffers[0], Pattern::U8(1)));
        copy(&streams[0], &buffers[2], &mapped).unwrap();
        assert!(mapped.read().unwrap().iter().all(|byte| *byte == 9), "seed {seed}");
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
    }
}

#[test]
fn each_failing_call_of_an_in_place_copy_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> transload_core::Result<()> {
        let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
        let (mapped, there) =
            (memory.allocate(MemoryKind::Mapped, 5000)?, memory.allocate(MemoryKind::Device, 5000)?);
        copy(&one, &mapped, &there)?;
        copy(&two, &there, &mapped)?;
        mapped.wait_idle()
    }
    with_each_call_failing(scenario);
}

#[test]
fn rejected_copy_kernel_is_unsupported() {
    for code in [209, 218, 221, 222, 223] {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let (one, two) = (
            memory.allocate(MemoryKind::Device, 64).unwrap(),
            memory.allocate(MemoryKind::Device, 64).unwrap(),
        );
        sim.fail_call(Some("cuModuleLoadDataEx"), 1, code);
        let error = copy(&stream, &one, &two).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{code}");
        assert!(error.to_string().contains("rejects this library's kernels for copies"), "{error}");
        stream.copy_device_to_device_async(&one, &two).wait().unwrap();
        // Tried again, since the driver may accept it now.
        copy(&stream, &one, &two).unwrap();
        stream.synchronize().unwrap();
    }
}

#[test]
fn a_prepared_pool_loads_nothing_when_it_copies() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let pool = AdvancedStreamPool::new(&device).unwrap();
    pool.prepare_in_place().unwrap();
    let (one, two) =
        (memory.allocate(MemoryKind::Device, 64).unwrap(), memory.allocate(MemoryKind::Device, 64).unwrap());
    let trace = transload_cuda_sys::trace::start();
    pool.prepare_in_place().unwrap();
    for _ in 0..4 {
        let queue = pool.get_priority_stream(transload_core::StreamPriority::High).unwrap().into_queue();
        submit(&*queue, &Operation::CopyInPlace { src: &one, dst: &two }, Timing::Off).unwrap();
    }
    let calls = trace.calls_of_this_thread();
    assert!(calls.iter().all(|call| !call.name.starts_with("cuModule")), "{calls:?}");
    pool.synchronize().unwrap();
}

#[test]
fn stream_ending_before_its_copy_keeps_the_module_loaded() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (one, two) = (
        memory.allocate(MemoryKind::Device, 5 << 20).unwrap(),
        memory.allocate(MemoryKind::Device, 5 << 20).unwrap(),
    );
    let first = CudaStream::new(&device).unwrap();
    let second = CudaStream::new(&device).unwrap();
    copy(&first, &one, &two).unwrap();
    copy(&second, &two, &one).unwrap();
    drop((first, second, one, two));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn concurrent_first_uses_load_one_module() {
    const THREADS: usize = 4;
    for round in 0..50 {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let there: Vec<_> = (0..THREADS)
            .map(|_| [(); 2].map(|()| memory.allocate(MemoryKind::Device, 64).unwrap()))
            .collect();
        let start = std::sync::Barrier::new(THREADS);
        let streams: Vec<CudaStream> = std::thread::scope(|scope| {
            let copying = there.iter().map(|[one, two]| {
                let (device, start) = (&device, &start);
                scope.spawn(move || {
                    let stream = CudaStream::new(device).unwrap();
                    start.wait();
                    copy(&stream, one, two).unwrap();
                    stream
                })
            });
            copying.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // A graph keeps one module for nodes that launch another stream's kernels: they must be the same.
        assert_eq!(sim.live_objects().modules, 1, "round {round}");
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
}
