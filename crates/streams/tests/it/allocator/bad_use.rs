//! Invalid use is refused with a reason and loses no memory.

use std::error::Error as _;

use transload_core::{Error, ErrorKind, MemoryKind};
use transload_cuda_sim::harness;
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, FreeError, StreamOrderedAllocator};

use crate::allocator::Fixture;

fn cause(error: &Error) -> FreeError {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    *error.cause().unwrap().downcast_ref::<FreeError>().unwrap()
}

#[test]
fn zero_bytes_and_a_pebibyte_are_typed_errors() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    for layer in ["raw", "buffer"] {
        let ask = |bytes| match layer {
            "raw" => fixture.allocator.allocate_for_stream(&stream, bytes).map(|_| ()),
            _ => fixture.allocator.allocate_buffer(&stream, bytes).map(|_| ()),
        };
        assert_eq!(ask(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(ask(usize::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let error = ask(1 << 50).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let shortage = error.memory_shortage().unwrap();
        assert_eq!(shortage.requested, 1 << 50);
        assert!(shortage.free.unwrap() <= shortage.total.unwrap());
        ask(100).unwrap();
    }
    drop(stream);
    fixture.finish();
}

#[test]
fn double_free_is_refused_and_spares_the_next_owner() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let block = fixture.allocator.allocate_for_stream(&stream, 4096).unwrap();
    fixture.allocator.free_on(block, &stream).unwrap();
    for error in [
        fixture.allocator.free_on(block, &stream).unwrap_err(),
        fixture.allocator.free_on(block.address(), &stream).unwrap_err(),
        fixture.allocator.free(block).unwrap_err(),
        fixture.allocator.record_use(block, &stream).unwrap_err(),
    ] {
        assert_eq!(cause(&error), FreeError::AlreadyFreed);
        assert!(error.source().is_none() && error.to_string().contains("freed before"), "{error}");
    }
    let next = fixture.allocator.allocate_for_stream(&stream, 4096).unwrap();
    assert_eq!(next.address(), block.address());
    let error = fixture.allocator.free_on(block, &stream).unwrap_err();
    assert_eq!(cause(&error), FreeError::AlreadyFreed, "the old value does not free the new block");
    fixture.allocator.free_on(next, &stream).unwrap();
    // Once merged with its neighbours, the block no longer exists.
    let whole = fixture.allocator.allocate_for_stream(&stream, 1 << 20).unwrap();
    fixture.allocator.free_on(whole, &stream).unwrap();
    let error = fixture.allocator.free_on(next, &stream).unwrap_err();
    assert_eq!(cause(&error), FreeError::AlreadyFreed);
    drop(stream);
    fixture.finish();
}

#[test]
fn free_of_an_unknown_address_is_refused() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let block = fixture.allocator.allocate_for_stream(&stream, 4096).unwrap();
    for address in [0, block.address() + 512, u64::MAX] {
        let error = fixture.allocator.free_on(address, &stream).unwrap_err();
        assert_eq!(cause(&error), FreeError::NeverAllocated, "{address:#x}");
    }
    let others = Fixture::new();
    let error = others.allocator.free(block).unwrap_err();
    assert_eq!(cause(&error), FreeError::NeverAllocated, "another allocator's block");
    fixture.allocator.free_on(block, &stream).unwrap();
    drop(stream);
    others.finish();
    fixture.finish();
}

#[test]
fn free_on_another_stream_needs_a_recorded_use() {
    let fixture = Fixture::new();
    let (own, other) = (fixture.stream(), fixture.stream());
    let block = fixture.allocator.allocate_for_stream(&own, 4096).unwrap();
    for error in [
        fixture.allocator.free_on(block, &other).unwrap_err(),
        fixture.allocator.free_on(block.address(), &other).unwrap_err(),
    ] {
        assert_eq!(cause(&error), FreeError::WrongStream);
    }
    assert_eq!(fixture.allocator.statistics().live_blocks, 1, "nothing was lost");
    fixture.allocator.record_use(block, &other).unwrap();
    fixture.allocator.free_on(block, &other).unwrap();
    assert_eq!(fixture.allocator.statistics().live_blocks, 0);
    drop((own, other));
    fixture.finish();
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let Some(tests) = harness::devices(2) else { return };
    let device = |index: usize| CudaDevice::new(tests[index].ordinal()).unwrap();
    let memory = std::sync::Arc::new(CudaMemoryManager::new(&device(0)).unwrap());
    let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device).unwrap());
    let foreign = CudaStream::new(&device(1)).unwrap();
    let error = allocator.allocate_for_stream(&foreign, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("valid are streams of"), "{error}");
    // Pinned memory belongs to no device.
    let pinned = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Pinned).unwrap());
    let block = pinned.allocate_for_stream(&foreign, 100).unwrap();
    pinned.free_on(block, &foreign).unwrap();
    drop((allocator, pinned, foreign));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty());
}

#[test]
fn per_thread_default_stream_is_refused() {
    let fixture = Fixture::new();
    let stream = CudaStream::per_thread_default(fixture.device()).unwrap();
    let error = fixture.allocator.allocate_for_stream(&stream, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(fixture.allocator.allocate_buffer(&stream, 100).is_err());
    // The legacy default stream is shared by all threads.
    let legacy = CudaStream::legacy_default(fixture.device()).unwrap();
    let block = fixture.allocator.allocate_for_stream(&legacy, 100).unwrap();
    fixture.allocator.free_on(block, &legacy).unwrap();
    drop((stream, legacy));
    fixture.finish();
}

#[test]
fn segments_of_no_size_are_refused() {
    let fixture = Fixture::new();
    for (small, large) in [(0, 1 << 20), (1 << 20, 0), (1000, 1 << 20)] {
        let resource = CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap();
        let error = StreamOrderedAllocator::builder(resource).segments(small, large).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let error = CudaResource::new(&fixture.memory, MemoryKind::Pageable).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    fixture.finish();
}

#[test]
fn free_of_a_buffers_address_is_refused() {
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let fixture = Fixture::over(kind);
        let stream = fixture.stream();
        let first = fixture.allocator.allocate_buffer(&stream, 4096).unwrap();
        let address =
            first.device_address().or_else(|| first.host_address().map(|at| at.addr().get() as u64)).unwrap();
        let freed = [
            fixture.allocator.free(address),
            fixture.allocator.free_on(address, &stream),
            fixture.allocator.record_use(address, &fixture.stream()),
        ];
        let second = fixture.allocator.allocate_buffer(&stream, 4096).unwrap();
        assert_ne!(
            (first.device_address(), first.host_address()),
            (second.device_address(), second.host_address())
        );
        if kind == MemoryKind::Pinned {
            let (mut one, mut two) = (first.write().unwrap(), second.write().unwrap());
            one.fill(1);
            two.fill(2);
            assert!(one.iter().all(|byte| *byte == 1), "two buffers open for writing over the same bytes");
        }
        for refused in freed {
            let error = refused.expect_err("memory of a live buffer");
            assert_eq!(cause(&error), FreeError::OwnedByBuffer, "{kind}");
            assert!(error.to_string().contains("drop the buffer"), "{error}");
        }
        drop((first, second));
        // The dropped buffers' memory is free and no longer belongs to a buffer.
        assert_eq!(cause(&fixture.allocator.free(address).unwrap_err()), FreeError::AlreadyFreed);
        drop(stream);
        fixture.finish();
    }
}

#[test]
fn a_refused_use_is_not_inherited_by_the_next_block() {
    let fixture = Fixture::new();
    let (stream, other) = (fixture.stream(), fixture.stream());
    let buffer = fixture.allocator.allocate_buffer(&stream, 4096).unwrap();
    let address = buffer.device_address().unwrap();
    assert!(
        fixture.allocator.record_use(address, &other).is_err(),
        "a use of a buffer's memory is the buffer's to know"
    );
    drop(buffer);
    let block = fixture.allocator.allocate_for_stream(&stream, 4096).unwrap();
    assert_eq!(block.address(), address);
    // Only a recorded user may free it on that stream.
    let error = fixture.allocator.free_on(block, &other).unwrap_err();
    assert_eq!(cause(&error), FreeError::WrongStream);
    fixture.allocator.free_on(block, &stream).unwrap();
    drop((stream, other));
    fixture.finish();
}
