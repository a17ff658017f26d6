//! Automatic prefetch: predicted memory is prefetched before it is used, and nothing else changes.

use std::sync::Arc;

use transload_core::{ErrorKind, Fence, MemoryKind, Operation, Pattern, RawBuffer, Timing, submit};
use transload_cuda_sys::trace;
use transload_memory::{AutoPrefetcher, DeviceResidency, PredictionLimits};
use transload_streams::{CudaKernel, CudaStream, LaunchConfig, LaunchExecutor};

use crate::{
    launch::{bytes, saxpy_of, watched},
    support::setup::{Setup, noise, seeds},
};

/// Elements of a chunk: 64 KiB, so that chunks share no page.
pub(crate) const CHUNK: usize = 16_384;

pub(crate) fn unified(setup: &Setup, chunks: usize) -> RawBuffer {
    let buffer = setup.memory.allocate(MemoryKind::Unified, chunks * CHUNK * 4).unwrap();
    buffer.write().unwrap().copy_from_slice(&bytes(&vec![1.0; chunks * CHUNK]));
    buffer
}

pub(crate) fn chunk(buffer: &RawBuffer, index: usize) -> RawBuffer {
    buffer.slice(index * CHUNK * 4..(index + 1) * CHUNK * 4).unwrap()
}

pub(crate) fn prefetcher(setup: &Setup, limits: PredictionLimits) -> AutoPrefetcher {
    let queue = Arc::new(CudaStream::new(&setup.device).unwrap());
    AutoPrefetcher::new(&setup.device, queue, limits).unwrap()
}

/// Runs y = y + x on a chunk to completion.
fn add(
    kernel: &CudaKernel,
    executor: Option<&LaunchExecutor>,
    stream: &CudaStream,
    x: &RawBuffer,
    y: &RawBuffer,
) {
    let launch = kernel.launch(LaunchConfig::for_elements(CHUNK as u64, 128));
    let launch = launch.arg(1.0_f32).reads(x).reads_writes(y).arg(CHUNK as u64);
    // SAFETY: the kernel takes these four parameters and touches that many numbers of each buffer.
    let fence: Fence = unsafe {
        match executor {
            Some(executor) => executor.enqueue(launch, stream),
            None => launch.enqueue(stream),
        }
    }
    .unwrap();
    fence.wait().unwrap();
}

pub(crate) fn prefetches(calls: &[trace::Call]) -> Vec<u64> {
    let of_this_name = |call: &&trace::Call| call.name.starts_with("cuMemPrefetchAsync");
    calls.iter().filter(of_this_name).map(|call| call.arguments[0]).collect()
}

#[test]
fn sweep_is_prefetched_from_its_third_chunk_on() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (unified(&setup, 12), setup.device(CHUNK * 4));
    let clear = Operation::Fill { dst: &y, pattern: Pattern::U8(0) };
    drop(submit(&stream, &clear, Timing::Off).unwrap());
    let auto = prefetcher(&setup, PredictionLimits { depth: 2, ..PredictionLimits::default() });
    let mut brought = Vec::new();
    for index in 0..12 {
        let own = chunk(&x, index);
        let trace = trace::start();
        auto.observe(&[&own, &y]);
        add(&kernel, None, &stream, &own, &y);
        brought.push(prefetches(&trace.calls_of_this_thread()));
    }
    let at = |index: usize| chunk(&x, index).device_address().unwrap();
    assert!(brought[..2].iter().all(Vec::is_empty), "{brought:?}");
    assert_eq!(brought[2], [at(3)]);
    assert_eq!(brought[3], [at(4), at(5)]);
    for (index, brought) in brought.iter().enumerate().take(10).skip(4) {
        assert_eq!(*brought, [at(index + 2)]);
    }
    assert!(brought[10..].iter().all(Vec::is_empty), "nothing beyond the end: {brought:?}");
    let statistics = auto.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.prefetches), (9, 0, 9));
    assert_eq!((statistics.observed, statistics.bytes), (12, 9 * CHUNK as u64 * 4));
    if let Some(sim) = setup.test.sim() {
        let counts = |index: usize| sim.migrations(at(index)..at(index) + CHUNK as u64 * 4).unwrap();
        assert!((0..3).all(|index| counts(index).gpu_faults > 0));
        assert!((3..12).all(|index| counts(index).gpu_faults == 0), "what was prefetched does not fault");
    }
    let back = setup.pinned(&vec![0; CHUNK * 4]);
    stream.copy_to_host_async(&y, &back).wait().unwrap();
    assert!(*back.read().unwrap() == bytes(&[12.0; CHUNK])[..]);
    drop((x, y, back, auto, stream, kernel));
    setup.finish();
}

#[test]
fn evicted_layers_are_prefetched_in_their_order() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let limits = PredictionLimits { depth: 2, ..PredictionLimits::default() };
    let executor = LaunchExecutor::new(&setup.device).unwrap().with_prediction(limits).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let layers: Vec<_> = (0..6).map(|_| unified(&setup, 1)).collect();
    let y = unified(&setup, 1);
    let mut late = Vec::new();
    for step in 0..5 {
        for layer in &layers {
            let trace = trace::start();
            add(&kernel, Some(&executor), &stream, layer, &y);
            let calls = trace.calls_of_this_thread();
            let first = calls.iter().position(|call| call.name == "cuLaunchKernel").unwrap();
            if prefetches(&calls[..first]).contains(&layer.device_address().unwrap()) {
                late.push(step);
            }
            executor.prefetch_back(layer).unwrap().unwrap().wait().unwrap();
        }
    }
    assert!(late.iter().filter(|step| **step < 2).count() == 12, "two steps are seen first: {late:?}");
    assert!(
        late.iter().filter(|step| **step > 2).count() == 0,
        "then none is prefetched by its launch: {late:?}"
    );
    let statistics = executor.prediction_statistics().unwrap();
    assert!(statistics.hits >= 24 && statistics.misses == 0, "{statistics:?}");
    assert!(*y.read().unwrap() == bytes(&[31.0; CHUNK])[..]);
    drop((layers, y, stream, executor, kernel));
    setup.finish();
}

#[test]
fn resident_memory_is_predicted_but_not_prefetched() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (unified(&setup, 8), unified(&setup, 1));
    // That many launches in a row are checked before any is skipped.
    let auto = prefetcher(&setup, PredictionLimits { depth: 8, ..PredictionLimits::default() });
    let sweep = || {
        let trace = trace::start();
        for index in 0..8 {
            let own = chunk(&x, index);
            auto.observe(&[&own, &y]);
            add(&kernel, None, &stream, &own, &y);
        }
        prefetches(&trace.calls_of_this_thread()).len()
    };
    assert_eq!(sweep(), 5);
    assert_eq!((sweep(), sweep(), sweep()), (0, 0, 0), "all of it lies there");
    assert!(auto.statistics().resident > 0);
    // Use by others: its residency is unknown.
    drop(x.read().unwrap());
    assert!(sweep() > 0);
    drop((x, y, auto, stream, kernel));
    setup.finish();
}

#[test]
fn range_in_a_host_view_is_not_prefetched() {
    let Some(setup) = Setup::sharing() else { return };
    let kernel = saxpy_of(&setup);
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (unified(&setup, 8), setup.device(CHUNK * 4));
    let auto = prefetcher(&setup, PredictionLimits::default());
    let looked_at = chunk(&x, 3);
    let view = looked_at.read().unwrap();
    for index in 0..3 {
        let own = chunk(&x, index);
        assert_eq!(auto.observe(&[&own]), 0);
        add(&kernel, None, &stream, &own, &y);
    }
    assert_eq!((auto.statistics().refused, auto.statistics().prefetches), (1, 0));
    assert!(*view == bytes(&[1.0; CHUNK])[..]);
    drop(view);
    let own = chunk(&x, 3);
    assert_eq!(auto.observe(&[&own]), 1, "and continues after it");
    add(&kernel, None, &stream, &own, &y);
    drop((x, y, own, looked_at, auto, stream, kernel));
    setup.finish();
}

#[test]
fn prefetcher_keeps_no_buffer_alive() {
    let Some(setup) = Setup::sharing() else { return };
    let auto = prefetcher(&setup, PredictionLimits::default());
    let mut layers: Vec<_> = (0..5).map(|_| unified(&setup, 1)).collect();
    let stream = CudaStream::new(&setup.device).unwrap();
    // The device uses each and the host reads it afterwards, so that it must be prefetched again.
    let step = |layers: &[RawBuffer]| {
        for layer in layers {
            auto.observe(&[layer]);
            let used = Operation::Fill { dst: layer, pattern: Pattern::U8(1) };
            submit(&stream, &used, Timing::Off).unwrap();
            drop(layer.read().unwrap());
        }
    };
    (0..4).for_each(|_| step(&layers));
    let before = auto.statistics();
    assert!(before.hits > 5, "{before:?}");
    drop(layers.remove(2));
    setup.memory.drain().unwrap();
    assert_eq!(setup.memory.resource_counts().allocations, 4, "the prefetcher held none");
    (0..6).for_each(|_| step(&layers));
    assert!(auto.statistics().hits > before.hits, "the new order is found");
    drop((layers, auto, stream));
    setup.finish();
}

#[test]
fn queue_and_residency_of_another_device_are_refused() {
    let Some(devices) = transload_cuda_sim::harness::devices(2) else { return };
    let open = |index: usize| transload_memory::CudaDevice::new(devices[index].ordinal()).unwrap();
    let queue = Arc::new(CudaStream::new(&open(0)).unwrap());
    let error = AutoPrefetcher::new(&open(1), queue, PredictionLimits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let queue = Arc::new(CudaStream::new(&open(0)).unwrap());
    let of_the_other = Arc::new(DeviceResidency::new(open(1).id()));
    let error = AutoPrefetcher::with_residency(&open(0), queue, PredictionLimits::default(), of_the_other);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn predictions_never_change_the_bytes() {
    watched(|| {
        for seed in seeds(6) {
            let Some(setup) = Setup::sharing() else { return };
            let kernel = saxpy_of(&setup);
            let limits = PredictionLimits { depth: 1 + seed as usize % 5, bytes_ahead: 4 * CHUNK * 4 };
            let executor = LaunchExecutor::new(&setup.device).unwrap().with_prediction(limits).unwrap();
            let stream = CudaStream::new(&setup.device).unwrap();
            let (x, y) = (unified(&setup, 10), unified(&setup, 10));
            let mut expected = (vec![1.0_f32; 10], vec![1.0_f32; 10]);
            for (step, byte) in noise(90, seed + 1).into_iter().enumerate() {
                // A sweep, then strides, then random accesses.
                let from = match (step / 30, seed % 2) {
                    (0, _) => step % 10,
                    (1, _) => step * 3 % 10,
                    _ => usize::from(byte) % 10,
                };
                let to = usize::from(byte / 16) % 10;
                match byte % 11 {
                    0 => chunk(&x, from).write().unwrap().copy_from_slice(&bytes(&[2.0; CHUNK])),
                    1 => drop(executor.prefetch_back(&chunk(&y, to)).unwrap()),
                    _ => add(&kernel, Some(&executor), &stream, &chunk(&x, from), &chunk(&y, to)),
                }
                match byte % 11 {
                    0 => expected.0[from] = 2.0,
                    1 => {}
                    _ => expected.1[to] += expected.0[from],
                }
            }
            for index in 0..10 {
                let (x, y) = (chunk(&x, index), chunk(&y, index));
                assert!(
                    *x.read().unwrap() == bytes(&[expected.0[index]; CHUNK])[..],
                    "seed {seed}, x {index}"
                );
                assert!(
                    *y.read().unwrap() == bytes(&[expected.1[index]; CHUNK])[..],
                    "seed {seed}, y {index}"
                );
            }
            drop((x, y, stream, executor, kernel));
            setup.finish();
        }
    });
}
