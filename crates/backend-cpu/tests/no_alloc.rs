//! Once everything is warm and nothing in flight is read, an operation on the submitting thread allocates nothing, and one on
//! the workers a bounded number of times. A binary of its own: its allocator counts what every thread does.

// Clippy knows no test in a binary without the harness.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Wake, Waker},
};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, Pattern, Pitched, StreamPriority, Timing, WorkloadType, submit,
};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

fn main() {
    let backend = CpuBackend::builder().workers(2).parallel_from(4 << 20).build().unwrap();
    let lease = |priority| backend.lease_queue(DeviceId::Cpu, priority, WorkloadType::Memory).unwrap();
    let queues = [lease(StreamPriority::Normal), lease(StreamPriority::High)];
    let waker = Waker::from(Arc::new(Nothing));
    for bytes in [100, 64 << 10, 2_600_000, 5 << 20] {
        let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
        let buffers = [allocate(), allocate(), allocate()];
        let [a, b, c] = &buffers;
        let rows = Pitched::new(bytes / 2, 2, bytes / 2, bytes / 2);
        // Work that reads behind host work in flight notes whose failure it would have to tell, and a view that waits for
        // such work takes a turn. Both allocate a little.
        for (waits, most) in [(true, 0), (false, 12)] {
            let round = || {
                let operations = [
                    Operation::Copy { src: a, dst: b },
                    Operation::Copy { src: b, dst: c },
                    Operation::CopyPitched { src: b, dst: c, rows },
                    Operation::Fill { dst: a, pattern: Pattern::U32(7) },
                ];
                for (index, operation) in operations.iter().enumerate() {
                    // Each after the last one, on the other queue.
                    let fence = submit(&*queues[index % 2], operation, Timing::Measured).unwrap();
                    fence.timeline().wake_at(fence.point(), &waker);
                    if waits || index == 3 {
                        fence.wait().unwrap();
                    }
                    fence.timeline().take_duration(fence.point()).unwrap();
                }
                drop(c.read().unwrap());
            };
            // Durations not yet known when they are asked for stay in the list, which grows to its bound.
            (0..2000).take(if bytes < 4 << 20 { 2000 } else { 30 }).for_each(|_| round());
            backend.drain().unwrap();
            let before = COUNT.load(Ordering::Relaxed);
            let rounds = if bytes < 1 << 20 { 100 } else { 10 };
            (0..rounds).for_each(|_| round());
            // The workers' part of it, too.
            buffers.iter().for_each(|buffer| buffer.wait_idle().unwrap());
            let allocated = COUNT.load(Ordering::Relaxed) - before;
            let what = format!(
                "{allocated} allocations in {rounds} warm rounds of {bytes} bytes, each waited for: {waits}"
            );
            // Of an operation on the workers: a task, what is shared out, the other worker's task, a place for a waker, room in
            // the queue of tasks; some more where a thread sleeps for the first time.
            let tasks = if bytes > 2 << 20 { 4 * 8 } else { 0 };
            assert!(allocated <= (most + tasks) * rounds, "{what}");
            println!("{what}");
        }
    }
}
