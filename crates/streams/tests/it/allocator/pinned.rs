//! Pinned memory from the allocator: hardly more held than asked for, and nothing asked of the driver while it is warm.

use transload_core::{MemoryKind, RawBuffer};
use transload_memory::{CudaResource, HostPages, LimitingResource, PinnedResource, UploadBuffer};
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::{Bed, calls_of},
    support::setup::noise,
};

fn pool(bed: &Bed) -> StreamOrderedAllocator {
    StreamOrderedAllocator::builder(PinnedResource::new(&bed.memory)).exact_segments().build().unwrap()
}

const MIB: usize = 1 << 20;

#[test]
fn no_more_than_a_tenth_is_held_beyond_what_was_asked_for() {
    let bed = Bed::new();
    let stream = bed.stream();
    let mixes: [&[usize]; 5] = [
        &[MIB + 1],
        &[3 * MIB + 5],
        &[33 * MIB],
        &[129 * MIB + 4096],
        &[MIB + 1, 3 * MIB + 5, 700_001, 33 * MIB, 2 * MIB - 1, 65_537, 17 * MIB + 13, 100_003, 5 * MIB],
    ];
    for sizes in mixes {
        let pool = pool(&bed);
        let asked: u64 = sizes.iter().map(|size| *size as u64).sum();
        let held: Vec<RawBuffer> =
            sizes.iter().map(|bytes| pool.allocate_buffer(&stream, *bytes).unwrap()).collect();
        assert!(held.iter().all(|buffer| buffer.place().kind == MemoryKind::Pinned));
        let reserved = pool.statistics().reserved;
        assert!(reserved * 10 <= asked * 11, "{reserved} bytes are held for {asked}: {sizes:?}");
        // Again, in another order: nothing more is needed.
        drop(held);
        let again: Vec<RawBuffer> =
            sizes.iter().rev().map(|bytes| pool.allocate_buffer(&stream, *bytes).unwrap()).collect();
        assert_eq!(pool.statistics().reserved, reserved, "{sizes:?}");
        drop((again, pool));
        bed.memory.drain().unwrap();
    }
    drop(stream);
    bed.finish();
}

#[test]
fn the_upstream_holds_what_the_allocator_says() {
    let bed = Bed::new();
    let stream = bed.stream();
    // Elsewhere pages cannot be chosen.
    let pages = if cfg!(target_os = "linux") { HostPages::Ordinary } else { HostPages::Driver };
    let pinned = PinnedResource::new(&bed.memory).with_pages(pages);
    let resource = std::sync::Arc::new(LimitingResource::new(pinned, u64::MAX));
    let pool =
        StreamOrderedAllocator::builder(std::sync::Arc::clone(&resource)).exact_segments().build().unwrap();
    let held: Vec<RawBuffer> =
        (1..30).map(|index| pool.allocate_buffer(&stream, index * 70_001).unwrap()).collect();
    let asked: u64 = held.iter().map(|buffer| buffer.len() as u64).sum();
    let used = resource.used();
    assert_eq!(used, pool.statistics().reserved);
    assert!(used * 10 <= asked * 11, "{used} bytes for {asked}");
    drop((held, pool, stream));
    assert_eq!(resource.used(), 0);
    drop(resource);
    bed.finish();
}

#[test]
fn warm_pinned_memory_asks_nothing_of_the_driver_nor_of_the_resource() {
    let bed = Bed::new();
    let stream = bed.stream();
    let pool = pool(&bed);
    for bytes in [4096, MIB, 3 * MIB + 5, 33 * MIB] {
        drop(pool.allocate_buffer(&stream, bytes).unwrap());
        let ((), calls) = calls_of(|| {
            for _ in 0..100 {
                drop(pool.allocate_buffer(&stream, bytes).unwrap());
            }
            // Plain addresses, for who orders the host's use by himself.
            for _ in 0..100 {
                let block = pool.allocate_for_stream(&stream, bytes).unwrap();
                pool.free_for_stream(block, &stream).unwrap();
            }
        });
        assert!(calls.is_empty(), "{bytes}: {} calls, first {:?}", calls.len(), calls.first());
        // A buffer over what was freed by hand has to know its end, which is one event.
        drop(pool.allocate_buffer(&stream, bytes).unwrap());
    }
    drop((pool, stream));
    bed.finish();
}

#[test]
fn a_pinned_buffer_over_memory_in_flight_is_written_only_behind_that() {
    let bed = Bed::new();
    let stream = bed.stream();
    let pool = StreamOrderedAllocator::builder(PinnedResource::new(&bed.memory)).ahead(0).build().unwrap();
    let device = bed.setup.device(300_000);
    let back = bed.setup.pinned(&vec![0; 300_000]);
    for round in 0..10 {
        let content = noise(300_000, round);
        let upload = pool.allocate_buffer(&stream, 300_000).unwrap();
        upload.write().unwrap().copy_from_slice(&content);
        drop(stream.copy_from_host_async(&upload, &device));
        drop(upload);
        // The same memory, while the copy engine may still read it.
        let next = pool.allocate_buffer(&stream, 300_000).unwrap();
        next.write().unwrap().fill(0);
        stream.copy_to_host_async(&device, &back).wait().unwrap();
        assert!(*back.read().unwrap() == content[..], "round {round}");
    }
    drop((pool, device, back, stream));
    bed.finish();
}

#[test]
fn write_combined_blocks_are_sources_only() {
    let bed = Bed::new();
    let stream = bed.stream();
    let pool = StreamOrderedAllocator::new(CudaResource::write_combined(&bed.memory));
    let content = noise(100_000, 3);
    let device = bed.setup.device(100_000);
    let upload = UploadBuffer::new(pool.allocate_buffer(&stream, 100_000).unwrap()).unwrap();
    upload.write(0, &content).unwrap();
    drop(stream.copy_from_host_async(upload.source(), &device));
    // Waits for the upload.
    upload.write(0, &[0; 1000]).unwrap();
    let back = bed.setup.pinned(&vec![0; 100_000]);
    stream.copy_to_host_async(&device, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    let refused = stream.copy_to_host_async(&device, upload.source()).wait().unwrap_err();
    assert_eq!(refused.kind(), transload_core::ErrorKind::InvalidArgument);
    drop((upload, back, device, pool, stream));
    bed.finish();
}
