//! The library's cost on the host for CUDA, with the software driver in the place of a device.

use std::sync::Arc;

use criterion::Criterion;
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_benches::cuda;
use transload_core::{DeviceId, MemoryKind, StreamPriority, WorkloadType};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, CudaStream, StreamOrderedAllocator};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::submissions;

const SEED: u64 = 1;

pub(crate) fn benches(criterion: &mut Criterion) {
    let ordinal = cuda::simulate(SEED).unwrap();
    let device = CudaDevice::new(ordinal).unwrap();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let config = CudaBackendConfig::default().with_devices([ordinal]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    let id = DeviceId::Cuda(ordinal);
    let host = manager.allocate_for(id, MemoryKind::Pinned, 4096).unwrap();
    let near = manager.allocate(id, MemoryKind::Device, 4096).unwrap();

    let mut group = criterion.benchmark_group("simulated");
    let options = TransferOptions::new();
    group.bench_function("plan", |bencher| {
        bencher.iter(|| manager.plan(host.place(), near.place(), 4096, &options).unwrap());
    });
    for strategy in AllocationStrategy::ALL {
        let pool = AdvancedStreamPool::builder(&device).strategy(strategy).streams(8..=8).build().unwrap();
        group.bench_function(format!("lease/{strategy:?}"), |bencher| {
            bencher.iter(|| pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap());
        });
    }
    let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
    let upstream = CudaResource::new(&memory, MemoryKind::Device).unwrap();
    let (allocator, stream) = (StreamOrderedAllocator::new(upstream), CudaStream::new(&device).unwrap());
    for bytes in [4 << 10, 1 << 20] {
        group.bench_function(format!("allocate and free/{bytes}"), |bencher| {
            bencher.iter(|| {
                let block = allocator.allocate_for_stream(&stream, bytes).unwrap();
                allocator.free_on(block, &stream).unwrap();
            });
        });
    }
    for (name, src, dst) in [("to the device", &host, &near), ("from the device", &near, &host)] {
        group.bench_function(format!("dispatch {name}/4096"), |bencher| {
            submissions(bencher, &manager, src, dst);
        });
    }
    group.finish();
    drop((host, near));
    manager.drain().unwrap();
}
