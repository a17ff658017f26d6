//! Claim and commit of core's submission, on a queue whose operations do nothing.

use std::sync::Arc;

use criterion::{Criterion, Throughput};
use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, MemoryKind, Operation, RawBuffer, Timing, submit_on};
use transload_transfer::CrossBackendTransferManager;

use crate::no_op_queue::NoOpQueue;

const PART: usize = 4096;
/// Pairs of a batch.
const BATCH: usize = 10_000;

pub(crate) fn benches(criterion: &mut Criterion) {
    let queue = NoOpQueue::reading(&Arc::default());
    let copy = |(src, dst): &(RawBuffer, RawBuffer)| {
        submit_on(&queue, &Operation::Copy { src, dst }, Timing::Off).unwrap()
    };

    let mut group = criterion.benchmark_group("claim and commit");
    let pair = parts(1, PART);
    group.bench_function("one pair", |bencher| bencher.iter(|| copy(&pair[0])));
    let many = parts(1000, PART);
    group.throughput(Throughput::Elements(many.len() as u64));
    group.bench_function("1000 parts in flight", |bencher| {
        bencher.iter(|| {
            many.iter().for_each(|pair| drop(copy(pair)));
            queue.complete();
        });
    });
    group.finish();

    let pairs = parts(BATCH, PART);
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("10000 pairs", |bencher| {
        bencher.iter(|| {
            let batch = Operation::CopyBatch { pairs: &pairs };
            submit_on(&queue, &batch, Timing::Off).unwrap();
            queue.complete();
        });
    });
    group.finish();
    queue.complete();

    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let short = parts(BATCH, 8);
    let mut group = criterion.benchmark_group("copy_many");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("10000 pairs of 8 bytes within the host", |bencher| {
        bencher.iter(|| manager.copy_many(&short).wait().unwrap());
    });
    group.finish();
}

/// `n` parts of one allocation, of so many bytes, each with one of another.
fn parts(n: usize, bytes: usize) -> Vec<(RawBuffer, RawBuffer)> {
    let backend = CpuBackend::new().unwrap();
    let [src, dst] =
        [(); 2].map(|()| backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, n * bytes).unwrap());
    let part = |of: &RawBuffer, index: usize| of.slice(index * bytes..(index + 1) * bytes).unwrap();
    (0..n).map(|index| (part(&src, index), part(&dst, index))).collect()
}
