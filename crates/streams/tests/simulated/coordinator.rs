//! The coordinator with race checks, failing driver calls and lost devices.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use transload_core::{ErrorKind, MemoryKind, Pattern, RawBuffer, Result};
use transload_cuda_sim::{SimDevice, harness};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaStream, Dependency, MultiStreamCoordinator, TaskStage};

use crate::{ILLEGAL_ADDRESS, UNKNOWN, alone_with_drop_errors, builder};

fn over<'a>(streams: impl IntoIterator<Item = &'a CudaStream>) -> MultiStreamCoordinator {
    let coordinator = MultiStreamCoordinator::new();
    streams.into_iter().for_each(|stream| assert!(coordinator.register(stream)));
    coordinator
}

/// A raw copy. The caller synchronises before it drops either buffer.
fn raw(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
    let address = |buffer: &RawBuffer| buffer.device_address().unwrap();
    // SAFETY: the ranges are valid, of one length, and live until the stream is synchronised; their order is under test.
    unsafe { stream.copy_raw_async(address(dst), address(src), src.len()) }
}

/// Writes on one stream, reads on another, overwrites on a third. Returns the number of races.
fn races(seed: u64, declare: impl Fn(&MultiStreamCoordinator, &[CudaStream; 3])) -> usize {
    let sim = builder().seed(seed).record_accesses(true).build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let own: [CudaStream; 3] = std::array::from_fn(|_| CudaStream::new(&device).unwrap());
    let [a, b, c] = [0; 3].map(|_| memory.allocate(MemoryKind::Device, 100_000).unwrap());
    let coordinator = over(&own);
    raw(&own[0], &a, &b).unwrap();
    declare(&coordinator, &own);
    raw(&own[1], &b, &c).unwrap();
    raw(&own[2], &a, &b).unwrap();
    own.iter().for_each(|stream| stream.synchronize().unwrap());
    sim.races().len()
}

#[test]
fn only_an_undeclared_dependency_is_a_race() {
    for seed in 0..30 {
        assert!(races(seed, |_, _| {}) > 0, "seed {seed}: nothing orders the three");
        let half = races(seed, |coordinator, own| {
            coordinator.add_dependency(&own[1], &own[0]).unwrap();
        });
        assert!(half > 0, "seed {seed}: the third stream is still free");
    }
    for seed in 0..30 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let own: [CudaStream; 3] = std::array::from_fn(|_| CudaStream::new(&device).unwrap());
        let [a, b, c] = [0; 3].map(|_| memory.allocate(MemoryKind::Device, 100_000).unwrap());
        let coordinator = over(&own);
        raw(&own[0], &a, &b).unwrap();
        coordinator.add_dependency(&own[1], &own[0]).unwrap();
        raw(&own[1], &b, &c).unwrap();
        // Through the second stream it is ordered after the first one too.
        coordinator.add_dependency(&own[2], &own[1]).unwrap();
        raw(&own[2], &c, &b).unwrap();
        let _passed = coordinator.create_barrier().unwrap();
        raw(&own[0], &b, &c).unwrap();
        raw(&own[1], &b, &a).unwrap();
        own.iter().for_each(|stream| stream.synchronize().unwrap());
        assert!(sim.races().is_empty(), "seed {seed}: {}", sim.races()[0]);
    }
}

struct TwoDevices {
    sims: [SimDevice; 2],
    memories: [CudaMemoryManager; 2],
    streams: [CudaStream; 2],
}

fn two() -> TwoDevices {
    let sims = [0; 2].map(|_| builder().build());
    let devices = sims.map(|sim| CudaDevice::new(sim.ordinal()).unwrap());
    let memories = devices.each_ref().map(|device| CudaMemoryManager::new(device).unwrap());
    let streams = devices.each_ref().map(|device| CudaStream::new(device).unwrap());
    TwoDevices { sims, memories, streams }
}

fn kind<T>(outcome: transload_core::Result<T>) -> ErrorKind {
    match outcome {
        Ok(_) => panic!("it must be refused"),
        Err(error) => error.kind(),
    }
}

#[test]
fn lost_device_is_a_typed_error_and_spares_the_other() {
    let TwoDevices { sims, memories, streams: [lost, well] } = two();
    let coordinator = over([&lost, &well]);
    let there = memories[0].allocate(MemoryKind::Device, 64).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&told);
    drop(lost.memset_async(&there, Pattern::U8(1)));
    coordinator
        .add_completion_callback(&lost, move |outcome| {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DeviceLost);
            tell.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    sims[0].poison(ILLEGAL_ADDRESS);
    assert_eq!(kind(coordinator.add_dependency(&well, &lost)), ErrorKind::DeviceLost);
    assert_eq!(kind(coordinator.create_barrier()), ErrorKind::DeviceLost);
    let busy = memories[1].allocate(MemoryKind::Device, 64).unwrap();
    drop(well.memset_async(&busy, Pattern::U8(1)));
    assert_eq!(kind(coordinator.add_dependency(&lost, &well)), ErrorKind::DeviceLost);
    assert_eq!(coordinator.dependencies(), [], "a refused dependency leaves no edge");
    let executed = coordinator.execute_all_callbacks();
    assert_eq!((executed.ran, executed.panics.len(), told.load(Ordering::Relaxed)), (1, 0, 1));
    assert!(coordinator.unregister(&lost));
    coordinator.create_barrier().unwrap().wait().unwrap();
    well.synchronize().unwrap();
}

#[test]
fn device_loss_fails_a_pending_barrier() {
    // In either case the first stream joins the others.
    for which in 0..2 {
        let TwoDevices { sims, memories, streams } = two();
        let coordinator = over(&streams);
        let buffers: Vec<_> =
            memories.iter().map(|memory| memory.allocate(MemoryKind::Device, 64).unwrap()).collect();
        for (stream, buffer) in streams.iter().zip(&buffers) {
            drop(stream.memset_async(buffer, Pattern::U8(1)));
        }
        let barrier = coordinator.create_barrier().unwrap();
        sims[which].poison(ILLEGAL_ADDRESS);
        assert_eq!(barrier.wait().unwrap_err().kind(), ErrorKind::DeviceLost, "device {which}");
        assert!(barrier.is_complete());
        assert_eq!(pollster::block_on(barrier).unwrap_err().kind(), ErrorKind::DeviceLost, "device {which}");
        let other = &streams[1 - which];
        assert!(coordinator.unregister(&streams[which]));
        other.memset_async(&buffers[1 - which], Pattern::U8(2)).wait().unwrap();
        coordinator.create_barrier().unwrap().wait().unwrap();
    }
}

#[test]
fn device_error_fails_only_its_own_tasks() {
    let TwoDevices { sims, memories, streams } = two();
    let coordinator = over(&streams);
    let buffers: Vec<_> =
        memories.iter().map(|memory| memory.allocate(MemoryKind::Device, 64).unwrap()).collect();
    let tasks = (0..6).map(|n| {
        let (sims, buffers) = (&sims, &buffers);
        move |stream: &CudaStream| {
            drop(stream.memset_async(&buffers[n % 2], Pattern::U8(1)));
            if n == 4 {
                sims[0].poison(ILLEGAL_ADDRESS);
            }
            Ok(n)
        }
    });
    let outcomes = coordinator.execute_parallel(tasks).unwrap();
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(value) => assert!(*value == n && n % 2 == 1, "task {n} ran on the lost device"),
            Err(failed) => {
                assert_eq!((failed.task, failed.stage, n % 2), (n, TaskStage::Running, 0), "{failed}");
                assert_eq!(failed.error.kind(), ErrorKind::DeviceLost);
                assert_eq!(failed.stream, streams[0].id());
            }
        }
    }
}

#[test]
fn each_failing_coordinator_call_is_a_typed_error() {
    fn scenario(
        device: &CudaDevice,
        memory: &CudaMemoryManager,
        streams: &mut Vec<CudaStream>,
    ) -> Result<()> {
        for _ in 0..3 {
            streams.push(CudaStream::new(device)?);
        }
        let coordinator = over(&*streams);
        let [one, two, three] = &streams[..] else { panic!("three were made") };
        let (a, b) = (memory.allocate(MemoryKind::Device, 5000)?, memory.allocate(MemoryKind::Device, 5000)?);
        let c = memory.allocate(MemoryKind::Device, 5000)?;
        let outcome = (|| {
            raw(one, &a, &b)?;
            coordinator.add_dependency(two, one)?;
            raw(two, &b, &c)?;
            let fence = two.fence()?;
            if coordinator.add_dependency_on(three, &fence)? == Dependency::Enqueued {
                assert!(coordinator.dependencies().len() <= 2);
            }
            coordinator.add_completion_callback(three, drop)?;
            let barrier = coordinator.create_barrier()?;
            raw(three, &c, &a)?;
            coordinator.execute_all_callbacks();
            for outcome in coordinator.execute_parallel([|stream: &CudaStream| raw(stream, &c, &b)])? {
                outcome?;
            }
            barrier.wait()
        })();
        // Raw copies keep no memory alive: whatever failed, they complete before it is freed.
        while !streams.iter().all(|stream| stream.synchronize().is_ok()) {}
        outcome
    }
    let _alone = alone_with_drop_errors();
    harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN],
        &[ErrorKind::Device],
        |sim| {
            let mut streams = Vec::new();
            let device = CudaDevice::new(sim.ordinal())?;
            let memory = CudaMemoryManager::new(&device)?;
            let outcome = scenario(&device, &memory, &mut streams);
            streams.clear();
            let drained = memory.drain();
            outcome.and(drained)
        },
    );
}
