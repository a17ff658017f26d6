//! Once warm, a timed operation allocates nothing more than one that is not profiled, on any thread. A binary of its own, for its allocator.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, MemoryKind, Observer, Operation, OperationSampling, Queue as _, Timing, TransferEvent,
    Wanted, submit,
};
use transload_cuda_sim::harness;
use transload_profiler::{ProfilerOptions, StreamProfiler};
use transload_streams::CudaStream;
use transload_transfer::CrossBackendTransferManager;

struct Counting;

/// Of all threads.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An observer of all transfers, each of which has memory of its own for that.
struct Wants;

impl Observer for Wants {
    fn transfer(&self, _: TransferEvent<'_>) {}

    fn wants(&self, _: u64) -> Wanted {
        Wanted::Times
    }
}

/// Operations of a round.
const ROUND: u64 = 10_000;

#[test]
fn warm_timed_operations_and_transfers_allocate_nothing() {
    let test = harness::device_like(|device| device).end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    let profiler =
        StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL).capacity(1 << 17));
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    let managers = [Arc::new(Wants) as _, profiler.observer()].map(|observer| {
        let manager = CrossBackendTransferManager::builder().observer(observer).build();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        manager.register_backend(Arc::clone(&backend) as _).unwrap();
        manager
    });
    let device = DeviceId::Cuda(test.ordinal());
    let here = backend.allocate(device, MemoryKind::Pinned, 4096).unwrap();
    let there = backend.allocate(device, MemoryKind::Device, 4096).unwrap();
    here.write().unwrap().fill(1);
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    // The software driver allocates for events, also those that the caller records.
    let stamp = |is_stamped: bool| is_stamped.then(|| stream.stamp().unwrap());
    let round = |is_transfer: bool, is_stamped: bool| {
        let (before, begun) = (ALLOCATIONS.load(Ordering::Relaxed), Instant::now());
        for _ in 0..ROUND {
            let begin = stamp(is_stamped);
            if is_transfer {
                let transfer = managers[usize::from(!is_stamped)].copy(&here, &there).submit();
                let end = stamp(is_stamped);
                transfer.wait().unwrap();
                stream.synchronize().unwrap();
                [begin, end].iter().flatten().for_each(|stamp| _ = stamp.time().unwrap());
                continue;
            }
            let fence = submit(&stream, &Operation::Copy { src: &here, dst: &there }, Timing::Off).unwrap();
            let end = stamp(is_stamped);
            fence.wait().unwrap();
            [begin, end].iter().flatten().for_each(|stamp| _ = stamp.time().unwrap());
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        // Each collection of the profiler's thread, 5 ms after the last one, takes some: however many operations it takes.
        let collections = if is_stamped { 0 } else { begun.elapsed().as_millis() as u64 / 5 + 1 };
        allocations.saturating_sub(5 * collections)
    };
    for is_transfer in [false, true] {
        // Events are kept for later ones, up to the most that were alive at a time.
        let fewest = |is_stamped| (0..4).map(|_| round(is_transfer, is_stamped)).min().unwrap_or(0);
        let stamped = fewest(true);
        profiler.enable().unwrap();
        let profiled = fewest(false);
        let report = profiler.get_comprehensive_report();
        profiler.disable();
        let more = profiled.saturating_sub(stamped);
        // Where operations come faster than they are collected, the backlog and what is counted of it take up to one for three.
        assert!(more < ROUND / 2, "{more} more than {stamped} of {ROUND}, transfers: {is_transfer}");
        let timed = report.streams.iter().flat_map(|it| &it.kinds).map(|it| it.running.count).sum::<u64>();
        assert!(timed >= 4 * ROUND && report.lost == 0, "{report}");
    }
    drop((profiler, managers, stream, here, there, backend));
    test.assert_no_live_objects();
}
