//! Once warm, a timed operation allocates nothing more than the same one with the caller's own stamps, on any thread, and nor does counting
//! it. A binary of its own, for its allocator.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
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

/// Operations of a round, after which all are counted: as many as are outstanding at most.
const ROUND: u64 = 1_000;

#[test]
fn warm_timed_operations_and_transfers_allocate_nothing() {
    let test = harness::device_like(|device| device).end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL));
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
    // Returns the allocations of all threads in so many operations, which are counted by the end.
    let round = |is_transfer: bool, is_stamped: bool, operations: u64| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..operations {
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
        drop(profiler.get_comprehensive_report());
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    // What ten times as many operations allocate more: a report and a collection take some, however many operations they count.
    let each = |is_transfer: bool, is_stamped: bool| {
        let fewest =
            |operations| (0..12).map(|_| round(is_transfer, is_stamped, operations)).min().unwrap_or(0);
        fewest(ROUND).saturating_sub(fewest(ROUND / 10))
    };
    for is_transfer in [false, true] {
        let stamped = each(is_transfer, true);
        profiler.enable().unwrap();
        let profiled = each(is_transfer, false);
        let report = profiler.get_comprehensive_report();
        profiler.disable();
        let more = profiled.saturating_sub(stamped);
        assert!(more < ROUND / 10, "{profiled}, {stamped} of {ROUND}, transfers: {is_transfer}");
        let timed = report.streams.iter().flat_map(|it| &it.kinds).map(|it| it.running.count).sum::<u64>();
        assert!(timed >= 12 * ROUND && report.lost == 0, "{report}");
    }
    drop((profiler, managers, stream, here, there, backend));
    test.assert_no_live_objects();
}
