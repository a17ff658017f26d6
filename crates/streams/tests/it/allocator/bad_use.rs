//! What must be refused is refused with a reason, and nothing is lost by it.

use std::error::Error as _;

use transload_core::{Error, ErrorKind, MemoryKind};
use transload_cuda_sim::harness;
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, FreeError, StreamOrderedAllocator};

use crate::allocator::Bed;

fn cause(error: &Error) -> FreeError {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    *error.cause().unwrap().downcast_ref::<FreeError>().unwrap()
}

#[test]
fn zero_bytes_and_a_pebibyte_are_typed_errors() {
    let bed = Bed::new();
    let stream = bed.stream();
    for layer in ["raw", "buffer"] {
        let ask = |bytes| match layer {
            "raw" => bed.allocator.allocate_for_stream(&stream, bytes).map(|_| ()),
            _ => bed.allocator.allocate_buffer(&stream, bytes).map(|_| ()),
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
    bed.finish();
}

#[test]
fn a_double_free_is_refused_and_the_next_owner_is_not_hurt() {
    let bed = Bed::new();
    let stream = bed.stream();
    let block = bed.allocator.allocate_for_stream(&stream, 4096).unwrap();
    bed.allocator.free_for_stream(block, &stream).unwrap();
    for error in [
        bed.allocator.free_for_stream(block, &stream).unwrap_err(),
        bed.allocator.free_for_stream(block.address(), &stream).unwrap_err(),
        bed.allocator.free(block).unwrap_err(),
        bed.allocator.record_use(block, &stream).unwrap_err(),
    ] {
        assert_eq!(cause(&error), FreeError::AlreadyFreed);
        assert!(error.source().is_none() && error.to_string().contains("freed before"), "{error}");
    }
    let next = bed.allocator.allocate_for_stream(&stream, 4096).unwrap();
    assert_eq!(next.address(), block.address());
    let error = bed.allocator.free_for_stream(block, &stream).unwrap_err();
    assert_eq!(cause(&error), FreeError::AlreadyFreed, "the old value does not free the new block");
    bed.allocator.free_for_stream(next, &stream).unwrap();
    // Joined with its neighbours the block is no block any more.
    let whole = bed.allocator.allocate_for_stream(&stream, 1 << 20).unwrap();
    bed.allocator.free_for_stream(whole, &stream).unwrap();
    let error = bed.allocator.free_for_stream(next, &stream).unwrap_err();
    assert_eq!(cause(&error), FreeError::AlreadyFreed);
    drop(stream);
    bed.finish();
}

#[test]
fn an_address_that_was_never_given_is_refused() {
    let bed = Bed::new();
    let stream = bed.stream();
    let block = bed.allocator.allocate_for_stream(&stream, 4096).unwrap();
    for address in [0, block.address() + 512, u64::MAX] {
        let error = bed.allocator.free_for_stream(address, &stream).unwrap_err();
        assert_eq!(cause(&error), FreeError::NeverAllocated, "{address:#x}");
    }
    let others = Bed::new();
    let error = others.allocator.free(block).unwrap_err();
    assert_eq!(cause(&error), FreeError::NeverAllocated, "another allocator's block");
    bed.allocator.free_for_stream(block, &stream).unwrap();
    drop(stream);
    others.finish();
    bed.finish();
}

#[test]
fn a_free_on_the_wrong_stream_is_refused_until_its_use_there_is_recorded() {
    let bed = Bed::new();
    let (own, other) = (bed.stream(), bed.stream());
    let block = bed.allocator.allocate_for_stream(&own, 4096).unwrap();
    for error in [
        bed.allocator.free_for_stream(block, &other).unwrap_err(),
        bed.allocator.free_for_stream(block.address(), &other).unwrap_err(),
    ] {
        assert_eq!(cause(&error), FreeError::WrongStream);
    }
    assert_eq!(bed.allocator.statistics().live_blocks, 1, "nothing was lost");
    bed.allocator.record_use(block, &other).unwrap();
    bed.allocator.free_for_stream(block, &other).unwrap();
    assert_eq!(bed.allocator.statistics().live_blocks, 0);
    drop((own, other));
    bed.finish();
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
    // Pinned memory is every device's.
    let pinned = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Pinned).unwrap());
    let block = pinned.allocate_for_stream(&foreign, 100).unwrap();
    pinned.free_for_stream(block, &foreign).unwrap();
    drop((allocator, pinned, foreign));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty());
}

#[test]
fn a_stream_that_only_one_thread_can_name_is_refused() {
    let bed = Bed::new();
    let stream = CudaStream::per_thread_default(bed.device()).unwrap();
    let error = bed.allocator.allocate_for_stream(&stream, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(bed.allocator.allocate_buffer(&stream, 100).is_err());
    // The legacy default stream is the same in every thread.
    let legacy = CudaStream::legacy_default(bed.device()).unwrap();
    let block = bed.allocator.allocate_for_stream(&legacy, 100).unwrap();
    bed.allocator.free_for_stream(block, &legacy).unwrap();
    drop((stream, legacy));
    bed.finish();
}

#[test]
fn segments_of_no_size_are_refused() {
    let bed = Bed::new();
    for (small, large) in [(0, 1 << 20), (1 << 20, 0), (1000, 1 << 20)] {
        let resource = CudaResource::new(&bed.memory, MemoryKind::Device).unwrap();
        let error = StreamOrderedAllocator::builder(resource).segments(small, large).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let error = CudaResource::new(&bed.memory, MemoryKind::Pageable).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    bed.finish();
}

#[test]
fn free_of_a_buffers_address_is_refused() {
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let bed = Bed::over(kind);
        let stream = bed.stream();
        let first = bed.allocator.allocate_buffer(&stream, 4096).unwrap();
        let address =
            first.device_address().or_else(|| first.host_address().map(|at| at.addr().get() as u64)).unwrap();
        let freed = [
            bed.allocator.free(address),
            bed.allocator.free_for_stream(address, &stream),
            bed.allocator.record_use(address, &bed.stream()),
        ];
        let second = bed.allocator.allocate_buffer(&stream, 4096).unwrap();
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
        // The dropped buffers' memory is free, not a buffer's.
        assert_eq!(cause(&bed.allocator.free(address).unwrap_err()), FreeError::AlreadyFreed);
        drop(stream);
        bed.finish();
    }
}

#[test]
fn a_refused_use_is_not_inherited_by_the_next_block() {
    let bed = Bed::new();
    let (stream, other) = (bed.stream(), bed.stream());
    let buffer = bed.allocator.allocate_buffer(&stream, 4096).unwrap();
    let address = buffer.device_address().unwrap();
    assert!(
        bed.allocator.record_use(address, &other).is_err(),
        "a use of a buffer's memory is the buffer's to know"
    );
    drop(buffer);
    let block = bed.allocator.allocate_for_stream(&stream, 4096).unwrap();
    assert_eq!(block.address(), address);
    // Only a recorded user may free it there.
    let error = bed.allocator.free_for_stream(block, &other).unwrap_err();
    assert_eq!(cause(&error), FreeError::WrongStream);
    bed.allocator.free_for_stream(block, &stream).unwrap();
    drop((stream, other));
    bed.finish();
}
