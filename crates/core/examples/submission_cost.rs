//! Measures what `submit` costs on the host: claims and commits of copies on a queue whose operations do nothing.
//!
//! `cargo run --release -p transload-core --example submission_cost` prints one line a case, in nanoseconds per copy: the
//! least of many short runs, since other load on the machine only ever adds. With two numbers, of parts and of passes, it
//! runs these alone, for a program that counts instructions; 0 parts are one pair on one queue, a thousand times a pass.
//! In the last column each operation also reads as much memory as the nearest cache has, as the call of a driver does, less
//! what that takes by itself.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails as a whole, and prints its result"
)]

#[path = "support/no_op_queue.rs"]
mod no_op_queue;

use std::{ptr::NonNull, sync::Arc, time::Instant};

use transload_core::{Fence, HostBytes, MemoryKind, Operation, RawBuffer, Reclaimer, Timing, submit_on};

use no_op_queue::NoOpQueue;

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

/// Copies of pairs of buffers in turn, each on the next queue, all in flight together. Returns nanoseconds a copy.
fn of(pairs: &[(RawBuffer, RawBuffer)], queues: &[NoOpQueue], copies: usize, passes: usize) -> f64 {
    let alone = least(passes, copies, || (0..copies).for_each(|_| queues[0].read()));
    let mut in_turn = queues.iter().cycle();
    let all = least(passes, copies, || {
        for ((src, dst), queue) in pairs.iter().cycle().take(copies).zip(&mut in_turn) {
            copy(queue, src, dst);
        }
        if pairs.len() > 1 {
            queues.iter().for_each(NoOpQueue::complete);
        }
    });
    all - alone
}

/// `n` parts of one allocation with as many of another, every `step`-th after each other.
fn parts(n: usize, step: usize) -> Vec<(RawBuffer, RawBuffer)> {
    const PART: usize = 4096;
    let (src, dst) = (buffer(n * PART), buffer(n * PART));
    let part = |index: usize| (index * step % n) * PART..(index * step % n + 1) * PART;
    (0..n).map(|index| (src.slice(part(index)).unwrap(), dst.slice(part(index)).unwrap())).collect()
}

/// A batch of `n` pairs of 4096 bytes, the destinations `step` pieces after each other, with `gap` bytes between all. Returns nanoseconds
/// a pair.
fn batch(n: usize, step: usize, gap: usize) -> f64 {
    const PART: usize = 4096;
    let pitch = PART + gap;
    let (src, dst) = (buffer(n * pitch), buffer(n * pitch));
    let part = |of: &RawBuffer, index: usize| of.slice(index * pitch..index * pitch + PART).unwrap();
    let pairs: Vec<_> = (0..n).map(|index| (part(&src, index), part(&dst, index * step % n))).collect();
    let queue = NoOpQueue::reading(&Arc::from([]));
    least(2_000_000 / n, n, || {
        submit_on(&queue, &Operation::CopyBatchInPlace { pairs: &pairs }, Timing::Off).unwrap();
        queue.complete();
    })
}

fn queues(n: usize, reads: &Arc<[u64]>) -> Vec<NoOpQueue> {
    (0..n).map(|_| NoOpQueue::reading(reads)).collect()
}

fn main() {
    let counts: Vec<usize> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let nothing: Arc<[u64]> = Arc::new([]);
    match counts.as_slice() {
        [0, passes] => {
            of(&parts(1, 1), &queues(1, &nothing), 1000, *passes);
            return;
        }
        [n, passes] => {
            of(&parts(*n, 1), &queues(8, &nothing), *n, *passes);
            return;
        }
        _ => {}
    }
    let mut there_and_back = parts(1, 1);
    there_and_back.extend(there_and_back.clone().into_iter().map(|(src, dst)| (dst, src)));
    let separate: Vec<_> = (0..64).flat_map(|_| parts(1, 1)).collect();
    let cases = [
        ("one pair, one queue", parts(1, 1), 1, 1000),
        ("one pair, two queues in turn", parts(1, 1), 2, 1000),
        ("one pair, there and back", there_and_back, 1, 1000),
        ("64 pairs", separate, 8, 64),
        ("250 parts in flight", parts(250, 1), 8, 250),
        ("1000 parts in flight", parts(1000, 1), 8, 1000),
        ("1000 parts, far from each other", parts(1000, 77), 8, 1000),
        ("1000 parts, another queue each time", parts(1000, 1), 7, 1000),
        ("8000 parts in flight", parts(8000, 1), 8, 8000),
    ];
    let cache: Arc<[u64]> = vec![0; 64 * 1024 / 8].into();
    for (name, pairs, n, copies) in cases {
        let passes = 400_000 / copies;
        let [warm, cold] = [&nothing, &cache].map(|reads| of(&pairs, &queues(n, reads), copies, passes));
        println!("{name:36} {warm:8.1} ns {cold:8.1} ns");
    }
    for n in [1000, 10_000] {
        for (name, step, gap) in [("in order", 1, 0), ("scattered", 7919, 0), ("scattered, gaps", 7919, 4096)]
        {
            println!("a batch of {n}, {name:21} {:8.1} ns", batch(n, step, gap));
        }
    }
}
