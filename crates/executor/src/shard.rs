//! Assigns each thread a shard, for state that threads should not share.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Number of shards. With more threads, some share one.
pub const SHARDS: usize = 64;

/// Returns the calling thread's shard, below [`SHARDS`]. Shards are assigned round-robin at a thread's first call and never
/// change.
#[inline]
#[must_use]
pub fn thread_shard() -> usize {
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(SHARDS) };
    }
    let shard = SHARD.get();
    if shard < SHARDS {
        return shard;
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    SHARD.set(shard);
    shard
}
