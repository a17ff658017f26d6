//! Released streams: only the owner has a handle afterwards, and their memory can be reused safely.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use transload_core::{MemoryKind, Pattern, StreamPriority};
use transload_cuda_sys::{AsStream, Stream, StreamOptions};
use transload_memory::CudaResource;
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::{allocator, fixture},
    builder, within,
};

const MIB: usize = 1 << 20;

#[test]
fn released_foreign_stream_is_held_by_no_other_thread() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = fixture(&sim);
        let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device).unwrap());
        let stop = AtomicBool::new(false);
        let mut held = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    allocator.trim().unwrap();
                }
            });
            for round in 0..1500 {
                let options = StreamOptions { priority: 0, blocking: false };
                let theirs = Stream::new(device.context().unwrap(), options).unwrap();
                // SAFETY: it outlives our handle, which is released before.
                let ours = unsafe { CudaStream::from_raw(&device, theirs.as_raw(), StreamPriority::Normal) };
                let ours = ours.unwrap();
                let block = allocator.allocate_for_stream(&ours, 1000).unwrap();
                allocator.free_on(block, &ours).unwrap();
                allocator.release_stream(&ours).unwrap();
                let timeline = Arc::downgrade(ours.fence().unwrap().timeline());
                ours.synchronize().unwrap();
                drop(ours);
                if timeline.strong_count() > 0 {
                    held.push(round);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(held.is_empty(), "held in {} of 1500 rounds, first in {:?}", held.len(), held.first());
    });
}

#[test]
fn a_released_stream_that_is_used_again_is_waited_for_again() {
    within(|| {
        for by_a_buffer in [false, true] {
            let sim = builder().record_accesses(true).checked();
            let (device, memory) = fixture(&sim);
            let allocator = allocator(&memory);
            let (one, two) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
            if by_a_buffer {
                let buffer = allocator.allocate_buffer(&one, MIB).unwrap();
                allocator.release_stream(&one).unwrap();
                for value in 0..20 {
                    drop(one.memset_async(&buffer, Pattern::U8(value)));
                }
                drop(buffer);
            } else {
                let block = allocator.allocate_for_stream(&one, MIB).unwrap();
                allocator.free_on(block, &one).unwrap();
                allocator.release_stream(&one).unwrap();
                let block = allocator.allocate_for_stream(&one, MIB).unwrap();
                for _ in 0..20 {
                    crate::allocator::fill(&one, block);
                }
                allocator.free_on(block, &one).unwrap();
            }
            let next = allocator.allocate_buffer(&two, MIB).unwrap();
            drop(two.memset_async(&next, Pattern::U8(100)));
            two.synchronize().unwrap();
            one.synchronize().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "by a buffer: {by_a_buffer}: {}", races[0]);
        }
    });
}

#[test]
fn memory_of_a_released_stream_is_reused_without_using_it() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let own = CudaStream::new(&device).unwrap();
        let options = StreamOptions { priority: 0, blocking: false };
        for _ in 0..20 {
            let theirs = Stream::new(device.context().unwrap(), options).unwrap();
            // SAFETY: it is released, so it may be destroyed first.
            let ours = unsafe { CudaStream::from_raw(&device, theirs.as_raw(), StreamPriority::Normal) };
            let ours = ours.unwrap();
            let block = allocator.allocate_for_stream(&ours, MIB).unwrap();
            allocator.free_on(block, &ours).unwrap();
            allocator.release_stream(&ours).unwrap();
            let trace = transload_cuda_sys::trace::start();
            drop(ours);
            let calls: Vec<_> = trace.calls_of_this_thread().iter().map(|call| call.name).collect();
            assert!(!calls.contains(&"cuEventRecord"), "{calls:?}");
            drop(theirs);
            let block = allocator.allocate_for_stream(&own, MIB).unwrap();
            allocator.free_on(block, &own).unwrap();
            allocator.trim().unwrap();
        }
    });
}
