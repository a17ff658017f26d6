//! The events of memory, streams and the CUDA backend, in the situations that `transload_core::events` names. A program of its own,
//! since the subscriber is the process's. On the software driver only, which fails on request.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../core/tests/shared/event_log.rs"]
mod event_log;
mod failed_calls;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../../../streams/tests/shared/host_line.rs"]
mod host_line;
mod memory;
mod streams;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use event_log::{find, find_one, record, record_with};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend, DeviceId, MemoryKind, events};
use transload_cuda_sim::{SimDevice, SimDeviceBuilder, harness::Checked};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

const MIB: usize = 1 << 20;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_PTX: u32 = 218;
const NOT_SUPPORTED: u32 = 801;
const UNKNOWN: u32 = 999;

fn builder() -> SimDeviceBuilder {
    transload_cuda_sim::install().unwrap();
    SimDevice::builder()
}

struct Fixture {
    device: CudaDevice,
    memory: Arc<CudaMemoryManager>,
    /// Dropped last.
    sim: Checked,
}

impl Fixture {
    fn new() -> Self {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
        Self { device, memory, sim }
    }

    fn name(&self) -> String {
        self.device.id().to_string()
    }
}

#[test]
fn first_use_of_a_context_is_reported() {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        fixture.memory.drain().unwrap();
    });
    let first = find_one(&records, events::FIRST_USE, events::DRIVER, &["elapsed_ns"]);
    assert_eq!((first.field("what"), first.field("device")), (Some("context"), Some(&*name)));
}

#[test]
fn released_idle_pinned_memory_is_reported() {
    let records = record(|| {
        let sim = builder().checked();
        let config =
            CudaBackendConfig::default().with_devices([sim.ordinal()]).with_pinned_limit(8 * MIB as u64);
        let backend = CudaBackend::open(&config).unwrap();
        let device = DeviceId::Cuda(sim.ordinal());
        let host = CpuBackend::new().unwrap();
        let ours = host.allocate(DeviceId::Cpu, MemoryKind::Pageable, 6 * MIB).unwrap();
        drop(backend.allocate(device, MemoryKind::Pinned, 5 * MIB).unwrap());
        drop(backend.register(&ours).unwrap());
        backend.drain().unwrap();
        drop(backend.allocate(device, MemoryKind::Pinned, 5 * MIB).unwrap());
        drop(backend.allocate(device, MemoryKind::Mapped, 6 * MIB).unwrap());
        backend.drain().unwrap();
    });
    let retried = find(&records, events::ALLOCATION_RETRIED, events::MEMORY, &["place", "bytes", "how"]);
    let how: Vec<_> = retried.iter().filter_map(|record| record.field("how")).collect();
    assert!(how.contains(&"idle pinned memory was released"), "{how:?}");
    assert!(how.contains(&"cached buffers were freed"), "{how:?}");
}

#[test]
fn subscriber_may_use_what_reports_the_event() {
    let fixture = Fixture::new();
    let resource = CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap();
    let allocator = StreamOrderedAllocator::builder(resource).limit(8 * MIB as u64).build().unwrap();
    let stream = CudaStream::new(&fixture.device).unwrap();
    let counts = Arc::new([const { AtomicU64::new(0) }; 2]);
    let hook = {
        let counts = Arc::clone(&counts);
        let (allocator, memory, stream) = (allocator.clone(), Arc::clone(&fixture.memory), stream.clone());
        move || {
            counts[0].fetch_add(1, Ordering::SeqCst);
            drop(memory.allocate(MemoryKind::Pinned, 100).unwrap());
            stream.synchronize().unwrap();
            let block = allocator.allocate_for_stream(&stream, 100).unwrap();
            allocator.free_on(block, &stream).unwrap();
            allocator.trim().unwrap();
            // Waits for other threads, which must not wait for this one.
            std::thread::scope(|scope| scope.spawn(|| memory.release_cached().unwrap()).join().unwrap());
            counts[1].fetch_add(1, Ordering::SeqCst);
        }
    };
    let records = record_with(hook, || {
        let few = [(); 4].map(|()| allocator.allocate_for_stream(&stream, 2 * MIB).unwrap());
        few.into_iter().for_each(|block| allocator.free_on(block, &stream).unwrap());
        let most = allocator.allocate_for_stream(&stream, 7 * MIB).unwrap();
        allocator.free_on(most, &stream).unwrap();
        stream.add_callback(|_| panic!("planted panic")).unwrap();
        stream.synchronize().unwrap();
        fixture.sim.fail_call(Some("cuStreamSynchronize"), 1, UNKNOWN);
        stream.synchronize().unwrap_err();
        fixture.sim.fail_call(Some("cuMemFreeHost"), 1, UNKNOWN);
        drop(fixture.memory.allocate(MemoryKind::Pinned, 100).unwrap());
        fixture.memory.drain().unwrap();
    });
    for (name, target) in [
        (events::ALLOCATION_RETRIED, events::MEMORY),
        (events::PANIC_CAUGHT, events::THREADS),
        (events::CALL_FAILED, events::DRIVER),
        (events::DROP_FAILED, events::DRIVER),
    ] {
        find(&records, name, target, &[]);
    }
    let [begun, ended] = [0, 1].map(|index| counts[index].load(Ordering::SeqCst));
    assert!(begun >= 4 && begun == ended, "{begun} calls of the subscriber began, {ended} succeeded");
    drop(transload_cuda_sys::take_drop_errors());
    std::mem::forget(fixture.sim);
}
