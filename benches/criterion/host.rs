//! The manager over the CPU backend: plan, lease, allocate, dispatch, copy.

use criterion::{Criterion, Throughput};
use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, MemoryKind, RawBuffer, StreamPriority, WorkloadType};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::submissions;

/// Sizes of copies: of a cache line, a page, a cache, and more than any cache.
const SIZES: [usize; 4] = [64, 4 << 10, 1 << 20, 64 << 20];

pub(crate) fn benches(criterion: &mut Criterion) {
    let backend = CpuBackend::new().unwrap();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(backend.clone()).unwrap();
    let buffer = |bytes: usize| -> RawBuffer {
        let buffer = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
        // Populates its pages.
        buffer.write().unwrap().fill(1);
        buffer
    };

    let mut group = criterion.benchmark_group("host");
    let (src, dst) = (buffer(64), buffer(64));
    let options = TransferOptions::new();
    group.bench_function("plan", |bencher| {
        bencher.iter(|| manager.plan(src.place(), dst.place(), 64, &options).unwrap());
    });
    group.bench_function("lease", |bencher| {
        bencher.iter(|| {
            backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap()
        });
    });
    for bytes in [4 << 10, 1 << 20] {
        group.bench_function(format!("allocate and free/{bytes}"), |bencher| {
            bencher.iter(|| manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap());
        });
    }
    group.bench_function("dispatch/64", |bencher| submissions(bencher, &manager, &src, &dst));
    for bytes in SIZES {
        let (src, dst) = (buffer(bytes), buffer(bytes));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("copy and wait/{bytes}"), |bencher| {
            bencher.iter(|| manager.copy(&src, &dst).wait().unwrap());
        });
    }
    group.finish();
}
