//! Pinned memory from the allocator: little overhead, and no driver calls once warm.

use transload_core::{MemoryKind, RawBuffer};
use transload_memory::{CudaResource, HostPages, LimitingResource, PinnedResource, UploadBuffer};
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::{Fixture, calls_of},
    support::setup::noise,
};

fn pool(fixture: &Fixture) -> StreamOrderedAllocator {
    StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory)).exact_segments().build().unwrap()
}

const MIB: usize = 1 << 20;

#[test]
fn pinned_overhead_is_at_most_a_tenth() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let mixes: [&[usize]; 5] = [
        &[MIB + 1],
        &[3 * MIB + 5],
        &[33 * MIB],
        &[129 * MIB + 4096],
        &[MIB + 1, 3 * MIB + 5, 700_001, 33 * MIB, 2 * MIB - 1, 65_537, 17 * MIB + 13, 100_003, 5 * MIB],
    ];
    for sizes in mixes {
        let pool = pool(&fixture);
        let requested: u64 = sizes.iter().map(|size| *size as u64).sum();
        let held: Vec<RawBuffer> =
            sizes.iter().map(|bytes| pool.allocate_buffer(&stream, *bytes).unwrap()).collect();
        assert!(held.iter().all(|buffer| buffer.place().kind == MemoryKind::Pinned));
        let reserved = pool.statistics().reserved;
        assert!(
            reserved * 10 <= requested * 11,
            "{reserved} bytes are held for {requested} requested: {sizes:?}"
        );
        // Again in another order: no further memory is needed.
        drop(held);
        let again: Vec<RawBuffer> =
            sizes.iter().rev().map(|bytes| pool.allocate_buffer(&stream, *bytes).unwrap()).collect();
        assert_eq!(pool.statistics().reserved, reserved, "{sizes:?}");
        drop((again, pool));
        fixture.memory.drain().unwrap();
    }
    drop(stream);
    fixture.finish();
}

#[test]
fn upstream_count_equals_the_allocators_statistics() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    // Other systems cannot choose the page size.
    let pages = if cfg!(target_os = "linux") { HostPages::Ordinary } else { HostPages::Driver };
    let pinned = PinnedResource::new(&fixture.memory).with_pages(pages);
    let resource = std::sync::Arc::new(LimitingResource::new(pinned, u64::MAX));
    let pool =
        StreamOrderedAllocator::builder(std::sync::Arc::clone(&resource)).exact_segments().build().unwrap();
    let held: Vec<RawBuffer> =
        (1..30).map(|index| pool.allocate_buffer(&stream, index * 70_001).unwrap()).collect();
    let requested: u64 = held.iter().map(|buffer| buffer.len() as u64).sum();
    let used = resource.used();
    assert_eq!(used, pool.statistics().reserved);
    assert!(used * 10 <= requested * 11, "{used} bytes for {requested} requested");
    drop((held, pool, stream));
    assert_eq!(resource.used(), 0);
    drop(resource);
    fixture.finish();
}

#[test]
fn warm_pinned_allocation_makes_no_driver_call() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let pool = pool(&fixture);
    for bytes in [4096, MIB, 3 * MIB + 5, 33 * MIB] {
        drop(pool.allocate_buffer(&stream, bytes).unwrap());
        let ((), calls) = calls_of(|| {
            for _ in 0..100 {
                drop(pool.allocate_buffer(&stream, bytes).unwrap());
            }
            // Plain addresses, for callers that order the host's use themselves.
            for _ in 0..100 {
                let block = pool.allocate_for_stream(&stream, bytes).unwrap();
                pool.free_on(block, &stream).unwrap();
            }
        });
        assert!(calls.is_empty(), "{bytes}: {} calls, first {:?}", calls.len(), calls.first());
        // A buffer over manually freed memory records one event for its earlier use.
        drop(pool.allocate_buffer(&stream, bytes).unwrap());
    }
    drop((pool, stream));
    fixture.finish();
}

#[test]
fn pinned_buffer_over_work_in_flight_waits_before_writing() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let pool = StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory))
        .run_ahead_limit(0)
        .build()
        .unwrap();
    let device = fixture.setup.device(300_000);
    let back = fixture.setup.pinned(&vec![0; 300_000]);
    for round in 0..10 {
        let content = noise(300_000, round);
        let upload = pool.allocate_buffer(&stream, 300_000).unwrap();
        upload.write().unwrap().copy_from_slice(&content);
        drop(stream.copy_from_host_async(&upload, &device));
        drop(upload);
        // The same memory, which the copy engine may still read.
        let next = pool.allocate_buffer(&stream, 300_000).unwrap();
        next.write().unwrap().fill(0);
        stream.copy_to_host_async(&device, &back).wait().unwrap();
        assert!(*back.read().unwrap() == content[..], "round {round}");
    }
    drop((pool, device, back, stream));
    fixture.finish();
}

#[test]
fn write_combined_blocks_are_sources_only() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let pool = StreamOrderedAllocator::new(CudaResource::write_combined(&fixture.memory));
    let content = noise(100_000, 3);
    let device = fixture.setup.device(100_000);
    let upload = UploadBuffer::new(pool.allocate_buffer(&stream, 100_000).unwrap()).unwrap();
    upload.write(0, &content).unwrap();
    drop(stream.copy_from_host_async(upload.source(), &device));
    // Waits for the upload.
    upload.write(0, &[0; 1000]).unwrap();
    let back = fixture.setup.pinned(&vec![0; 100_000]);
    stream.copy_to_host_async(&device, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    let refused = stream.copy_to_host_async(&device, upload.source()).wait().unwrap_err();
    assert_eq!(refused.kind(), transload_core::ErrorKind::InvalidArgument);
    drop((upload, back, device, pool, stream));
    fixture.finish();
}
