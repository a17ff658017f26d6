//! Loom models of an arena and of the per-thread buffer caches, with two preemptions: the state is the library's, its lock
//! is loom's.
#![cfg(any(target_os = "linux", windows))]
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a model uses part of what it includes, and fails by panicking"
)]

#[path = "../../src/allocator/arena/mod.rs"]
mod arena;
#[path = "../../src/allocator/block.rs"]
mod block;
#[path = "../../src/allocator/shard.rs"]
mod shard;

mod sync {
    //! loom's lock with the interface of the library's.
    pub(crate) use loom::sync::MutexGuard;

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

use std::convert::Infallible;

use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use arena::{
    Handle,
    blocks::{Order, Piece},
    size::AllocParams,
};
use shard::{Kept, Shard, Use};

type Arena = arena::Arena<(), (), ()>;

/// The generation of an arena's first stream.
const FIRST: u64 = 1;

fn model(work: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(work);
}

/// An arena of a first stream with one free segment of that many 512-byte blocks.
fn arena_of(blocks: u64) -> Arc<Arena> {
    let arena = Arc::new(Arena::new(()));
    arena.lock().enter(FIRST, (), false);
    let piece = Piece { address: 512, size: blocks * 512, segment: 0, small: true, order: Order::default() };
    arena.lock().blocks.insert_free(piece);
    arena
}

fn params() -> AllocParams {
    AllocParams::new(512, false).unwrap()
}

fn take(arena: &Arena) -> Option<(Handle, u64)> {
    arena.lock().take_block(params())
}

fn free(arena: &Arena, (handle, address): (Handle, u64)) -> bool {
    let mut state = arena.lock();
    let found = state.live(handle, address);
    state.free_exclusive(found)
}

#[test]
fn concurrent_double_free_succeeds_once() {
    model(|| {
        let arena = arena_of(1);
        let block = take(&arena).unwrap();
        let other = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || free(&arena, block))
        };
        let here = free(&arena, block);
        assert!(here ^ other.join().unwrap(), "exactly one of them");
        assert_eq!(arena.lock().blocks.counts.in_use, 0);
    });
}

#[test]
fn two_threads_of_one_stream_never_hold_the_same_block() {
    model(|| {
        let arena = arena_of(2);
        let other = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                let block = take(&arena).unwrap();
                assert!(free(&arena, block));
                take(&arena).unwrap().1
            })
        };
        let (_, here) = take(&arena).unwrap();
        assert_ne!(here, other.join().unwrap());
    });
}

/// A stream enqueues work on a block and frees it, while another thread records a point and takes free blocks: it takes no
/// block whose work the point does not cover.
#[test]
fn watermark_covers_the_work_of_earlier_frees() {
    model(|| {
        let arena = arena_of(1);
        // Amount of work enqueued on the stream; a recorded point covers all work up to then.
        let enqueued = Arc::new(AtomicU64::new(0));
        let use_once = |arena: &Arena, enqueued: &AtomicU64| {
            let Some(block) = take(arena) else { return };
            enqueued.fetch_add(1, Ordering::AcqRel);
            assert!(free(arena, block));
        };
        use_once(&arena, &enqueued);
        let worker = {
            let (arena, enqueued) = (Arc::clone(&arena), Arc::clone(&enqueued));
            thread::spawn(move || use_once(&arena, &enqueued))
        };
        let record = || Ok::<_, Infallible>(enqueued.load(Ordering::Acquire));
        let Ok(Some(watermark)) = arena.record_watermark(FIRST, record) else {
            unreachable!("it is the first generation")
        };
        let taken = {
            let mut state = arena.lock();
            state.blocks.merge_quick();
            let found = state.blocks.find(params(), |node| node.order.freed <= watermark.freed);
            found.map(|node| state.blocks.extract(node, 512))
        };
        if let Some(piece) = taken {
            // The n-th free followed n pieces of work.
            assert!(piece.order.freed <= watermark.point, "{watermark:?} does not cover {piece:?}");
        }
        worker.join().unwrap();
    });
}

/// A stream is released and another one gets its arena, while a thread records a point for frees of the first: the second
/// one's frees are not taken for those.
#[test]
fn watermark_is_not_passed_on_to_the_next_stream() {
    model(|| {
        let arena = arena_of(1);
        let block = take(&arena).unwrap();
        assert!(free(&arena, block));
        let worker = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                arena.lock().vacate(());
                let mut state = arena.lock();
                state.enter(FIRST + 1, (), false);
                let (handle, address) = state.take_block(params()).unwrap();
                let found = state.live(handle, address);
                assert!(state.free_exclusive(found));
            })
        };
        arena.record_watermark(FIRST, || Ok::<_, Infallible>(1)).unwrap();
        worker.join().unwrap();
        let state = arena.lock();
        assert_eq!(state.freed, 1);
        assert_eq!(state.watermark.freed, 0, "no point of the second stream was recorded");
    });
}

/// Two threads order a stream after another one: the later point is kept, whichever is entered last.
#[test]
fn later_fence_of_one_stream_is_kept() {
    model(|| {
        let arena = Arc::new(arena::Arena::<(), u64, ()>::new(()));
        let last_point = Arc::new(AtomicU64::new(0));
        let depend = |arena: &arena::Arena<(), u64, ()>, last_point: &AtomicU64| {
            let point = last_point.fetch_add(1, Ordering::AcqRel) + 1;
            arena.lock().depend(point, |one, other| one >= other, &mut Vec::new());
        };
        let other = {
            let (arena, last_point) = (Arc::clone(&arena), Arc::clone(&last_point));
            thread::spawn(move || depend(&arena, &last_point))
        };
        depend(&arena, &last_point);
        other.join().unwrap();
        assert_eq!(arena.lock().dependencies, [2]);
    });
}

const LEN: usize = 4096;

fn take_kept(shard: &Shard<u32>) -> Option<u32> {
    match shard.take(LEN) {
        Kept::Idle(buffer) | Kept::Busy(buffer) => Some(buffer),
        Kept::Nothing => None,
    }
}

/// A thread drops two buffers while the allocator's last handle is dropped: each is freed once, and none stays cached.
#[test]
fn closed_shard_keeps_nothing_and_loses_nothing() {
    model(|| {
        let shard = Arc::new(Shard::new());
        let other = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || {
                let mut freed = shard.put(LEN, 1, Use::Idle);
                freed.extend(shard.put(LEN, 2, Use::Busy));
                freed
            })
        };
        let mut freed = shard.take_all(true);
        freed.extend(other.join().unwrap());
        freed.sort_unstable();
        assert_eq!(freed, [1, 2]);
        assert!(take_kept(&shard).is_none());
    });
}

/// Two threads share a shard, and a third empties it: exactly one of them gets a cached buffer.
#[test]
fn cached_buffer_is_taken_by_one_thread_only() {
    model(|| {
        let shard = Arc::new(Shard::new());
        assert!(shard.put(LEN, 1, Use::Idle).is_empty());
        let takes = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || take_kept(&shard))
        };
        let empties = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || shard.take_all(false))
        };
        let here = take_kept(&shard);
        let mut found: Vec<u32> = here.into_iter().chain(takes.join().unwrap()).collect();
        found.extend(empties.join().unwrap());
        assert_eq!(found, [1]);
    });
}

/// A thread finds the oldest buffer still in flight and puts it back, while another drops one: the order stays.
#[test]
fn buffers_in_flight_stay_in_drop_order() {
    model(|| {
        let shard = Arc::new(Shard::new());
        assert!(shard.put(LEN, 1, Use::Busy).is_empty());
        let other = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || assert!(shard.put(LEN, 2, Use::Busy).is_empty()))
        };
        if let Kept::Busy(buffer) = shard.take(LEN) {
            assert_eq!(buffer, 1);
            assert!(shard.put(LEN, buffer, Use::StillBusy).is_empty());
        }
        other.join().unwrap();
        assert_eq!([take_kept(&shard), take_kept(&shard), take_kept(&shard)], [Some(1), Some(2), None]);
    });
}

#[test]
fn blocks_are_taken_in_point_order() {
    let mut blocks = arena::in_flight::InFlight::default();
    for (point, node) in [(5, 0), (3, 1), (9, 2), (3, 3), (7, 4)] {
        blocks.push(point, node, 10);
    }
    assert_eq!((blocks.first(), blocks.bytes()), (Some(3), 50));
    assert_eq!(blocks.pop_reached(2), None);
    let reached: Vec<u32> = std::iter::from_fn(|| blocks.pop_reached(5)).collect();
    assert_eq!(reached, [1, 3, 0]);
    assert_eq!(blocks.take_first(|node| node == 2), Some(2));
    assert_eq!((blocks.first(), blocks.bytes()), (Some(7), 10));
}
