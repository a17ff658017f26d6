//! A warm buffer costs no heap allocation, even after a use. A binary of its own, for its allocator.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

#[path = "it/serving.rs"]
#[allow(dead_code, reason = "shared with the tests of any driver")]
mod serving;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use serving::{Elsewhere, finish, open};
use transload_core::{Backend, MemoryKind, RawBuffer};
use transload_cuda_sim::harness;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ending = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

#[test]
fn warm_buffers_cost_no_heap_allocation() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let elsewhere = Elsewhere::new();
    elsewhere.open();
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        for bytes in [4096, 9 << 20] {
            for used in [false, true] {
                let mut held: Vec<RawBuffer> = Vec::with_capacity(16);
                let mut take = || {
                    for _ in 0..16 {
                        held.push(backend.allocate(device, kind, bytes).unwrap());
                        if used {
                            held.iter().for_each(|buffer| elsewhere.uses(buffer));
                        }
                    }
                    held.clear();
                };
                take();
                let first = allocations_of(&mut take);
                assert_eq!(first, 0, "16 buffers of {bytes} bytes of {kind}, used: {used}");
            }
        }
    }
    assert!(allocations_of(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the count counts");
    finish(test, backend);
}
