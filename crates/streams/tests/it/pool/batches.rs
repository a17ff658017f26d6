//! The pool's choice of stream for small copies: a batch stays on one stream, and a thread stays on its least loaded one.

use std::collections::HashSet;

use transload_core::{Queue, StreamPriority, WorkloadType};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, StreamLease};

use crate::{pool::make, support::setup::Setup};

#[test]
fn batch_of_small_copies_stays_on_one_stream() {
    const RUN: usize = 16;
    let setup = Setup::new();
    // It never shrinks.
    let builder = AdvancedStreamPool::builder(&setup.device).streams(3..=3);
    let pool = builder.strategy(AllocationStrategy::LoadBalanced).build().unwrap();
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let (here, there) = (setup.pinned(&vec![1; 1 << 20]), setup.device(1 << 20));
    // Each copies other bytes, so none waits for another.
    let mut next = 0;
    let mut copy = |bytes: usize| {
        let (lease, range) = (lease(), next..next + bytes);
        next = range.end;
        drop(lease.copy_from_host_async(&here.slice(range.clone()).unwrap(), &there.slice(range).unwrap()));
        lease.id()
    };
    // Never polled, so all count as outstanding: three idle streams first, then the least loaded ones.
    for run in [RUN, 8 * RUN] {
        let streams: HashSet<_> = (0..3)
            .map(|_| {
                let run: HashSet<_> = (0..run).map(|_| copy(64)).collect();
                assert_eq!(run.len(), 1, "one stream for a run");
                run.into_iter().next()
            })
            .collect();
        assert_eq!(streams.len(), 3, "another stream for each run");
    }
    there.wait_idle().unwrap();
    pool.synchronize().unwrap();
    let (large, small) = (copy(1 << 19), copy(64));
    assert_ne!(large, small, "a small copy does not queue behind a large one");
    there.wait_idle().unwrap();
    drop((pool, here, there));
    setup.finish();
}

#[test]
fn thread_does_not_stay_next_to_the_least_loaded_stream() {
    let setup = Setup::new();
    let pool = make(&setup, 2, AllocationStrategy::LoadBalanced);
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let (here, there) = (setup.pinned(&[1; 4096]), setup.device(4096));
    // Each copies other bytes, so none waits for another. Never polled, so all count as outstanding.
    let copy = |lease: &StreamLease, at: usize| {
        let range = at * 64..(at + 1) * 64;
        drop(lease.copy_from_host_async(&here.slice(range.clone()).unwrap(), &there.slice(range).unwrap()));
    };
    let (little, much) = (lease(), lease());
    let id = little.id();
    // With its handle exposed, it is used round-robin.
    let _handle = little.raw_handle();
    copy(&little, 0);
    (1..21).for_each(|at| copy(&much, at));
    drop((little, much));
    (0..3).for_each(|_| assert_eq!(lease().id(), id, "it has less to do"));
    there.wait_idle().unwrap();
    drop((pool, here, there));
    setup.finish();
}
