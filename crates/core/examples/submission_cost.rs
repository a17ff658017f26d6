//! Measures what `submit` costs on the host: claims and commits of copies on a queue whose operations do nothing.
//!
//! `cargo run --release -p transload-core --example submission_cost` prints one line a case, in nanoseconds per copy: the
//! least of many short runs, since other load on the machine only ever adds. With two numbers, of parts and of passes, it
//! runs these alone, for a program that counts instructions; 0 parts are one pair on one queue, a thousand times a pass.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails as a whole, and prints its result"
)]

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use transload_core::{
    DeviceId, Fence, HostBytes, MemoryKind, Operation, Place, Queue, RawBuffer, Reclaimer, Result,
    StreamPriority, Timeline, TimelineId, Timing, next_timeline_id, submit_on,
};

struct NoOpTimeline {
    id: TimelineId,
    reached: AtomicU64,
}

// SAFETY: the operations of its queue touch no memory.
unsafe impl Timeline for NoOpTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn take_duration(&self, _: u64) -> Result<Option<Duration>> {
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct NoOpQueue {
    own: Arc<NoOpTimeline>,
    timeline: Arc<dyn Timeline>,
    last: AtomicU64,
}

impl NoOpQueue {
    fn new() -> Self {
        let own = Arc::new(NoOpTimeline { id: next_timeline_id(), reached: AtomicU64::new(0) });
        Self { timeline: own.clone(), own, last: AtomicU64::new(0) }
    }

    fn complete(&self) {
        self.own.reached.store(self.last.load(Ordering::Relaxed), Ordering::Release);
    }
}

// SAFETY: an operation does nothing.
unsafe impl Queue for NoOpQueue {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        let point = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }

    fn outstanding(&self) -> u64 {
        0
    }
}

fn buffer(bytes: usize) -> RawBuffer {
    let mut owner = vec![0_u128; bytes.div_ceil(16)].into_boxed_slice();
    let address = NonNull::from(&mut *owner).cast();
    // SAFETY: the box owns the bytes, and does not move them when it is moved.
    let storage = unsafe { HostBytes::new(owner, address, bytes, MemoryKind::Pinned, true) };
    RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()))
}

fn copy(queue: &NoOpQueue, src: &RawBuffer, dst: &RawBuffer) -> Fence {
    submit_on(queue, &Operation::Copy { src, dst }, Timing::Off).unwrap()
}

/// Returns the least time of `runs` runs of `each`, which does `copies` copies, in nanoseconds a copy.
fn least(runs: usize, copies: usize, mut each: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let begun = Instant::now();
            each();
            begun.elapsed()
        })
        .min()
        .map_or(0.0, |least| least.as_secs_f64() * 1e9 / copies as f64)
}

/// Copies of one pair of buffers on one queue, or in turn on two.
fn of_one_pair(queues: &[NoOpQueue], passes: usize) -> f64 {
    let (src, dst) = (buffer(4096), buffer(4096));
    least(passes, 1000, || {
        for index in 0..1000 {
            copy(&queues[index % queues.len()], &src, &dst);
        }
    })
}

/// Copies of `n` parts of one allocation to as many of another, on eight queues, all in flight together.
fn of_parts(n: usize, passes: usize) -> f64 {
    const PART: usize = 4096;
    let (src, dst) = (buffer(n * PART), buffer(n * PART));
    let parts: Vec<_> = (0..n)
        .map(|index| {
            let range = index * PART..(index + 1) * PART;
            (src.slice(range.clone()).unwrap(), dst.slice(range).unwrap())
        })
        .collect();
    let queues: Vec<_> = (0..8).map(|_| NoOpQueue::new()).collect();
    least(passes, n, || {
        for (index, (src, dst)) in parts.iter().enumerate() {
            copy(&queues[index % 8], src, dst);
        }
        queues.iter().for_each(NoOpQueue::complete);
    })
}

fn main() {
    let counts: Vec<usize> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let one = [NoOpQueue::new()];
    match counts.as_slice() {
        [0, passes] => {
            of_one_pair(&one, *passes);
            return;
        }
        [n, passes] => {
            of_parts(*n, *passes);
            return;
        }
        _ => {}
    }
    println!("one pair, one queue             {:8.1} ns", of_one_pair(&one, 400));
    println!(
        "one pair, two queues in turn    {:8.1} ns",
        of_one_pair(&[NoOpQueue::new(), NoOpQueue::new()], 400)
    );
    for (n, passes) in [(250, 20), (1000, 20), (8000, 5)] {
        println!("{n:5} parts in flight           {:8.1} ns", of_parts(n, passes));
    }
}
