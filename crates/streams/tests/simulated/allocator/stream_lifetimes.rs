//! Streams released, dropped or replaced in their arena while another thread uses that arena.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use transload_core::{MemoryKind, Pattern};
use transload_cuda_sys::{AsStream, check, ffi};
use transload_memory::CudaResource;
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::{PollHook, allocator, fill, fixture, rendezvous},
    builder,
    gate::Gate,
    within,
};

const MIB: usize = 1 << 20;
const QUARTER: usize = MIB / 4;

#[test]
fn concurrent_release_and_drain_both_return() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = fixture(&sim);
        let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device).unwrap());
        let streams: Vec<_> = (0..4).map(|_| CudaStream::new(&device).unwrap()).collect();
        let use_once = |stream: &CudaStream| {
            let block = allocator.allocate_for_stream(stream, MIB).unwrap();
            fill(stream, block);
            allocator.free_on(block, stream).unwrap();
        };
        streams.iter().for_each(use_once);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..300).for_each(|_| allocator.drain().unwrap()));
            for _ in 0..300 {
                use_once(&streams[0]);
                allocator.release_stream(&streams[0]).unwrap();
            }
        });
    });
}

#[test]
fn stream_end_reaches_every_allocator_that_used_it() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = fixture(&sim);
        let allocators: Vec<_> = (0..16).map(|_| allocator(&memory)).collect();
        let (some, others) = allocators.split_at(8);
        for _ in 0..500 {
            let stream = CudaStream::new(&device).unwrap();
            let at = AtomicU32::new(0);
            let first_uses = |allocators: &[StreamOrderedAllocator]| {
                rendezvous(&at);
                for allocator in allocators {
                    // The shortest call that registers the stream.
                    assert!(allocator.free_on(512_u64, &stream).is_err());
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| first_uses(some));
                first_uses(others);
            });
            drop(stream);
            // Waits for the end of every registered stream.
            allocators.iter().for_each(|allocator| allocator.drain().unwrap());
        }
    });
}

#[test]
fn memory_of_an_ended_stream_is_not_passed_on_without_a_wait() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let [ended, after, other] = [(); 3].map(|()| CudaStream::new(&device).unwrap());
        let gate = Gate::before(&device, &[&ended]);
        let block = allocator.allocate_for_stream(&ended, MIB).unwrap();
        fill(&ended, block);
        allocator.free_on(block, &ended).unwrap();
        // From here on this stream is ordered after the work of the other one, which ends.
        let first = allocator.allocate_for_stream(&after, 512).unwrap();
        drop(ended);
        // All that the ended stream had is this one's now.
        let second = allocator.allocate_for_stream(&after, 512).unwrap();
        let third = allocator.allocate_for_stream(&other, 4096).unwrap();
        for (stream, block) in [(&after, first), (&after, second), (&other, third)] {
            fill(stream, block);
        }
        gate.open();
        [&after, &other].into_iter().for_each(|stream| stream.synchronize().unwrap());
        for (stream, block) in [(&after, first), (&after, second), (&other, third)] {
            allocator.free_on(block, stream).unwrap();
        }
    });
}

#[test]
fn memory_of_a_reused_arena_is_not_coalesced_without_a_wait() {
    within(|| {
        for nth in 1..6 {
            let sim = builder().record_accesses(true).build(); // Unchecked: foreign work that never completes keeps memory.
            let (device, memory) = fixture(&sim);
            let allocator = allocator(&memory);
            let [one, two, three] = [(); 3].map(|()| CudaStream::new(&device).unwrap());
            let gated = allocator.allocate_buffer(&one, QUARTER).unwrap();
            let rest = allocator.allocate_for_stream(&one, 3 * QUARTER).unwrap();
            allocator.free_on(rest, &one).unwrap();
            let hook = PollHook::new();
            hook.uses(&gated);
            drop(gated);
            hook.run_at(nth, {
                let (allocator, two, three) = (allocator.clone(), two.clone(), three.clone());
                move || {
                    allocator.release_stream(&two).unwrap();
                    if let Ok(block) = allocator.allocate_for_stream(&three, 3 * QUARTER) {
                        (0..20).for_each(|_| fill(&three, block));
                        allocator.free_on(block, &three).unwrap();
                    }
                }
            });
            if let Ok(block) = allocator.allocate_for_stream(&two, 3 * QUARTER) {
                fill(&two, block);
                allocator.free_on(block, &two).unwrap();
            }
            two.synchronize().unwrap();
            three.synchronize().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "hook {nth} times: {}", races[0]);
        }
    });
}

/// State of a host function that blocks until the test opens it.
#[derive(Default)]
struct HostGate {
    is_reached: AtomicBool,
    is_open: AtomicBool,
}

unsafe extern "C" fn block_until_open(data: *mut c_void) {
    // SAFETY: the data is a `HostGate` that outlives the stream's work.
    let host_gate = unsafe { &*data.cast::<HostGate>() };
    host_gate.is_reached.store(true, Ordering::SeqCst);
    wait_until(|| host_gate.is_open.load(Ordering::SeqCst));
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// Coalesces memory of three streams. The second one's event is recorded only after the first stream was released and
/// another one has its arena; the third one's event fails.
#[test]
fn memory_put_back_into_a_reused_arena_does_not_wait() {
    const QUEUE: u64 = 64;
    within(|| {
        let sim = builder().launch_queue(QUEUE).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let [first, second, third, asks, new] = [(); 5].map(|()| CudaStream::new(&device).unwrap());
        let buffer = allocator.allocate_buffer(&first, QUARTER).unwrap();
        let blocks =
            [&second, &third, &asks].map(|stream| allocator.allocate_for_stream(stream, QUARTER).unwrap());
        let gate = Gate::before(&device, &[&first, &third]);
        for value in 0..20 {
            drop(first.memset_async(&buffer, Pattern::U8(value)));
        }
        drop(buffer);
        let host_gate = HostGate::default();
        {
            let _bound = second.context().enter().unwrap();
            let data = (&raw const host_gate).cast_mut().cast();
            // SAFETY: the gate outlives the work of all streams.
            let code = unsafe { ffi::cuLaunchHostFunc(second.as_raw(), Some(block_until_open), data) };
            check("cuLaunchHostFunc", code).unwrap();
        }
        // The next call for this stream waits for the host function.
        (1..QUEUE).for_each(|_| fill(&second, blocks[0]));
        allocator.free_on(blocks[0], &second).unwrap();
        fill(&third, blocks[1]);
        allocator.free_on(blocks[1], &third).unwrap();
        let streams = allocator.statistics().streams;
        std::thread::scope(|scope| {
            let joined = scope.spawn(|| allocator.allocate_buffer(&asks, 3 * QUARTER).unwrap());
            wait_until(|| host_gate.is_reached.load(Ordering::SeqCst));
            gate.open();
            scope.spawn(|| allocator.release_stream(&first).unwrap());
            wait_until(|| allocator.statistics().streams < streams);
            // The shortest call that registers the stream.
            assert!(allocator.free_on(512_u64, &new).is_err());
            sim.fail_call(Some("cuEventRecord"), 1, crate::UNKNOWN);
            host_gate.is_open.store(true, Ordering::SeqCst);
            let joined = joined.join().unwrap();
            let behind = joined.in_flight().unwrap();
            assert!(behind.is_empty(), "waits for {behind:?}, though all work was waited for");
        });
        allocator.free_on(blocks[2], &asks).unwrap();
    });
}
