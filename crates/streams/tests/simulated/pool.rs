//! The pool on a failing driver or a lost device.

use std::time::Duration;

use transload_core::{ErrorKind, MemoryKind, Pattern, Queue, StreamPriority, WorkloadType};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, WorkloadSplit};

use crate::{
    ILLEGAL_ADDRESS, UNKNOWN, alone_with_drop_errors, builder, gate::Gate, with_each_call_failing, within,
};

#[test]
fn leases_and_waits_report_a_lost_device() {
    // Destroying streams of a lost device records drop errors.
    let _alone = alone_with_drop_errors();
    for strategy in AllocationStrategy::ALL {
        let sim = builder().build();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let pool = AdvancedStreamPool::new_with_strategy(&device, 3, strategy).unwrap();
        let there = memory.allocate(MemoryKind::Device, 100).unwrap();
        let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory);
        let in_flight = lease().unwrap().memset_async(&there, Pattern::U8(1));
        sim.poison(ILLEGAL_ADDRESS);
        assert_eq!(in_flight.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
        for _ in 0..5 {
            // The failed stream is leased, and reports its error, since no other can be created.
            let outcome = lease().and_then(|lease| lease.memset_async(&there, Pattern::U8(2)).wait());
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DeviceLost, "{strategy}");
        }
        assert_eq!(pool.has_ready_streams().unwrap_err().kind(), ErrorKind::DeviceLost);
        let waited = pool.wait_for_any_ready(Duration::from_secs(60));
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::DeviceLost);
        assert!(pool.synchronize().is_err());
        assert_eq!(pool.leases(), 0);
        let _errors_of_a_lost_device = pool.trim();
    }
}

#[test]
fn wait_for_a_ready_stream_returns_no_busy_one_if_none_can_be_created() {
    within(|| {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let pool = AdvancedStreamPool::new_with_strategy(&device, 3, AllocationStrategy::RoundRobin).unwrap();
        let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let (one, two) = (lease(), lease());
        let [first, second] = [&one, &two].map(|stream| Gate::before(&device, &[stream]));
        for _ in 0..2 {
            sim.fail_call(Some("cuStreamCreateWithPriority"), 1, UNKNOWN);
            assert!(pool.wait_for_any_ready(Duration::ZERO).unwrap().is_none());
        }
        // Whichever becomes idle first, and though a lease has it.
        second.open();
        two.synchronize().unwrap();
        sim.fail_call(Some("cuStreamCreateWithPriority"), 1, UNKNOWN);
        assert_eq!(pool.wait_for_any_ready(None).unwrap().map(|ready| ready.id()), Some(two.id()));
        first.open();
    });
}

#[test]
fn failed_stream_creation_is_an_error_only_without_another() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let pool = AdvancedStreamPool::new_with_strategy(&device, 3, AllocationStrategy::RoundRobin).unwrap();
    sim.fail_call(Some("cuStreamCreateWithPriority"), 1, UNKNOWN);
    sim.fail_call(Some("cuStreamCreateWithPriority"), 3, UNKNOWN);
    let lease = || pool.get_priority_stream(StreamPriority::High);
    assert_eq!(lease().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!((pool.leases(), pool.streams(StreamPriority::High)), (0, 0));
    let first = lease().unwrap();
    let second = lease().unwrap();
    assert_eq!(second.raw_handle(), first.raw_handle(), "shared, since no other could be made");
    let third = lease().unwrap();
    assert_ne!(third.raw_handle(), first.raw_handle(), "the next lease tries again");
}

#[test]
fn each_failing_call_of_a_pool_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> transload_core::Result<()> {
        let pool = AdvancedStreamPool::new(device)?;
        let there = memory.allocate(MemoryKind::Device, 100)?;
        let one = pool.get_stream_for_workload(WorkloadType::Memory)?;
        let two = pool.get_stream_for_workload(WorkloadType::Memory)?;
        let fills = [
            one.memset_async(&there.slice(..50)?, Pattern::U8(1)),
            two.memset_async(&there.slice(50..)?, Pattern::U8(2)),
        ];
        drop((one, two));
        let ready = pool.wait_for_any_ready(Duration::from_secs(60)).map(drop);
        let mut outcome = ready.and(pool.has_ready_streams().map(drop));
        for fill in fills {
            outcome = outcome.and(fill.wait().map(drop));
        }
        pool.trim();
        outcome.and(pool.synchronize())
    }
    with_each_call_failing(scenario);
}

#[test]
fn lease_calls_the_driver_only_to_create_a_stream() {
    for strategy in AllocationStrategy::ALL {
        // Another thread may still destroy the streams of the pool before: of another device.
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        // However long the loop takes, no stream is retired.
        let builder = AdvancedStreamPool::builder(&device).streams(1..=3).quiet(Duration::MAX);
        let pool = builder.strategy(strategy).build().unwrap();
        let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Compute).unwrap();
        let held: Vec<_> = (0..9).map(|_| lease()).collect();
        let before = sim.calls();
        for _ in 0..5000 {
            drop(lease().into_queue());
        }
        assert_eq!(sim.calls(), before, "{strategy}: streams that are there are leased without the driver");
        drop(held);
    }
}

#[test]
fn defaults_come_from_the_device() {
    let split = |sim: transload_cuda_sim::SimDevice| {
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let pool = AdvancedStreamPool::new(&device).unwrap();
        (pool.split(), pool.bounds(), pool.strategy())
    };
    let small = WorkloadSplit { compute: 2, memory: 4, mixed: 2, coordination: 1 };
    let workload = AllocationStrategy::Workload;
    assert_eq!(split(builder().multiprocessors(40).copy_engines(1).build()), (small, 1..=9, workload));
    let large = WorkloadSplit { compute: 8, memory: 8, mixed: 2, coordination: 1 };
    assert_eq!(split(builder().build()).0, large);
}
