//! The pool: which stream a lease gets, when the pool grows and shrinks, and what a lease outlives.

mod batches;
mod existing;
mod optimizer;
mod ready;
mod split;

use std::{collections::HashSet, thread, time::Duration};

use transload_core::{ErrorKind, Pattern, Queue, StreamPriority, WorkloadType};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, StreamLease, WorkloadSplit};

use crate::support::{
    gate::{Gate, limited},
    setup::Setup,
};

const PRIORITIES: [StreamPriority; 3] = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low];
pub(crate) const WORKLOADS: [WorkloadType; 4] =
    [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination];

pub(crate) fn make(setup: &Setup, streams: usize, strategy: AllocationStrategy) -> AdvancedStreamPool {
    AdvancedStreamPool::new_with_strategy(&setup.device, streams, strategy).unwrap()
}

fn handles<'a>(leases: impl IntoIterator<Item = &'a StreamLease>) -> HashSet<usize> {
    leases.into_iter().map(|lease| lease.raw_handle().unwrap()).collect()
}

#[test]
fn pool_of_1_to_64_streams_leases_that_many_per_priority() {
    let setup = Setup::new();
    for streams in 1..=64 {
        let pool = make(&setup, streams, AllocationStrategy::LoadBalanced);
        assert_eq!(pool.bounds(), 1..=streams);
        let leases: Vec<_> =
            (0..70).map(|_| pool.get_priority_stream(StreamPriority::Normal).unwrap()).collect();
        assert_eq!(handles(&leases).len(), streams);
    }
    setup.finish();
}

#[test]
fn pools_of_invalid_sizes_and_splits_are_refused() {
    let setup = Setup::new();
    for (streams, strategy) in
        [0, 65, usize::MAX].into_iter().flat_map(|n| AllocationStrategy::ALL.map(|strategy| (n, strategy)))
    {
        let error = AdvancedStreamPool::new_with_strategy(&setup.device, streams, strategy).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("valid are 1 to 64"), "{error}");
    }
    let builder = || AdvancedStreamPool::builder(&setup.device);
    #[expect(clippy::reversed_empty_ranges, reason = "it is what is to be refused")]
    let refused = [
        builder().streams(3..=2),
        builder().streams(64..=65),
        builder().split(WorkloadSplit { compute: 0, memory: 0, mixed: 0, coordination: 0 }),
        builder().split(WorkloadSplit { compute: 64, memory: 1, mixed: 0, coordination: 0 }),
        builder().split(WorkloadSplit { compute: usize::MAX, memory: 1, mixed: 0, coordination: 0 }),
        builder().streams(1..=2).split(WorkloadSplit { compute: 2, memory: 1, mixed: 0, coordination: 0 }),
    ];
    for builder in refused {
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    setup.finish();
}

#[test]
fn one_stream_serves_every_strategy_priority_and_workload() {
    let setup = Setup::new();
    for strategy in AllocationStrategy::ALL {
        let pool = make(&setup, 1, strategy);
        let mut leases = Vec::new();
        for priority in PRIORITIES {
            leases.extend(WORKLOADS.map(|workload| pool.lease(priority, workload).unwrap()));
        }
        assert_eq!(handles(&leases).len(), 3, "{strategy}: one stream for each priority");
        assert_eq!(pool.leases(), 12);
        leases.clear();
        assert_eq!(pool.leases(), 0, "{strategy}");
        assert_eq!(PRIORITIES.map(|priority| pool.streams(priority)), [1; 3]);
    }
    setup.finish();
}

#[test]
fn stream_and_context_are_created_at_the_first_lease() {
    let test = transload_cuda_sim::harness::device();
    let device = transload_memory::CudaDevice::new(test.ordinal()).unwrap();
    let trace = transload_cuda_sys::trace::start();
    let pool = AdvancedStreamPool::new(&device).unwrap();
    let made = |name: &str| trace.calls_of_this_thread().iter().filter(|call| call.name == name).count();
    assert_eq!((made("cuDevicePrimaryCtxRetain"), made("cuStreamCreateWithPriority")), (0, 0));
    drop(pool.get_priority_stream(StreamPriority::Normal).unwrap());
    assert_eq!(made("cuStreamCreateWithPriority"), 1);
    for _ in 0..100 {
        drop(pool.get_priority_stream(StreamPriority::Normal).unwrap());
    }
    assert_eq!(made("cuStreamCreateWithPriority"), 1, "a stream that is free is leased again");
}

#[test]
fn driver_confirms_the_priority_of_every_group() {
    let setup = Setup::new();
    let (least, greatest) = setup.device.context().unwrap().stream_priority_range().unwrap();
    for strategy in AllocationStrategy::ALL {
        let pool = make(&setup, 3, strategy);
        for priority in PRIORITIES {
            let leases: Vec<_> = (0..5).map(|_| pool.get_priority_stream(priority).unwrap()).collect();
            for lease in &leases {
                assert_eq!(lease.priority(), priority);
                let driver = lease.driver_priority().unwrap();
                match priority {
                    StreamPriority::High => assert_eq!(driver, greatest),
                    StreamPriority::Normal => assert_eq!(driver, i32::midpoint(least, greatest)),
                    StreamPriority::Low => assert_eq!(driver, least),
                }
            }
        }
    }
    setup.finish();
}

#[test]
fn concurrent_leases_share_streams_beyond_the_bound() {
    let setup = Setup::new();
    for strategy in [AllocationStrategy::RoundRobin, AllocationStrategy::LoadBalanced] {
        let pool = make(&setup, 4, strategy);
        let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let first: Vec<_> = (0..4).map(|_| lease()).collect();
        assert_eq!(handles(&first).len(), 4, "{strategy}");
        let more: Vec<_> = (0..8).map(|_| lease()).collect();
        assert_eq!(handles(&more), handles(&first), "{strategy}: leases share what there is, evenly");
        assert_eq!(pool.leases(), 12);
        drop(more);
        assert_eq!((pool.leases(), pool.streams(StreamPriority::Normal)), (4, 4));
    }
    setup.finish();
}

#[test]
fn round_robin_takes_the_streams_in_turn() {
    let setup = Setup::new();
    let pool = make(&setup, 3, AllocationStrategy::RoundRobin);
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let all: Vec<_> = (0..3).map(|_| lease()).collect();
    drop(all);
    let turns: Vec<_> = (0..9).map(|_| lease().raw_handle().unwrap()).collect();
    assert_eq!(turns[..3].iter().collect::<HashSet<_>>().len(), 3);
    assert!((3..9).all(|turn| turns[turn] == turns[turn - 3]), "{turns:?}");
    drop(pool);
    setup.finish();
}

#[test]
fn round_robin_is_per_thread() {
    limited(|| {
        let setup = Setup::new();
        // It never shrinks.
        let builder = AdvancedStreamPool::builder(&setup.device).streams(3..=3);
        let pool = builder.strategy(AllocationStrategy::RoundRobin).build().unwrap();
        let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
        drop([lease(), lease(), lease()]);
        let meet = std::sync::Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    meet.wait();
                    let turns: Vec<_> = (0..300).map(|_| lease().id()).collect();
                    assert_eq!(turns[..3].iter().collect::<HashSet<_>>().len(), 3, "{:?}", &turns[..3]);
                    assert!((3..300).all(|turn| turns[turn] == turns[turn - 3]), "strictly in turn");
                });
            }
        });
        drop(pool);
        setup.finish();
    });
}

#[test]
fn thread_gets_its_last_stream_again_unless_shared() {
    let setup = Setup::new();
    let pool = make(&setup, 3, AllocationStrategy::LoadBalanced);
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let all = [lease(), lease(), lease()];
    let turns = |count| (0..count).map(|_| lease().id()).collect::<HashSet<_>>().len();
    // With their handles exposed, their load is unknown.
    assert_eq!(handles(&all).len(), 3);
    drop(all);
    assert_eq!(turns(3), 3, "in turn");
    drop(pool);
    let pool = make(&setup, 3, AllocationStrategy::LoadBalanced);
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    drop([lease(), lease(), lease()]);
    let turns = |count| (0..count).map(|_| lease().id()).collect::<HashSet<_>>().len();
    assert_eq!(turns(9), 1, "the same");
    drop(pool);
    setup.finish();
}

#[test]
fn load_balancing_compares_leases_then_work_then_time() {
    let setup = Setup::new();
    let pool = make(&setup, 2, AllocationStrategy::LoadBalanced);
    let lease = |workload| pool.lease(StreamPriority::Normal, workload).unwrap();
    let there = setup.device(64);
    let (slow, quick) = (lease(WorkloadType::Compute), lease(WorkloadType::Memory));
    let (slow_handle, quick_handle) = (slow.raw_handle(), quick.raw_handle());
    // One long operation here, three short ones there.
    let gate = Gate::before(&setup.device, &[&slow, &quick]);
    let part = |n: usize| there.slice(n * 16..(n + 1) * 16).unwrap();
    let mut work = vec![slow.memset_async(&part(3), Pattern::U8(0))];
    work.extend((0..3).map(|n| quick.memset_async(&part(n), Pattern::U8(n as u8))));
    assert_eq!((slow.outstanding(), quick.outstanding()), (1, 3));
    drop(quick);
    assert_eq!(lease(WorkloadType::Memory).raw_handle(), quick_handle, "that stream is not leased");
    drop(slow);
    assert_eq!(lease(WorkloadType::Compute).raw_handle(), slow_handle, "it has less to do");
    pool.record_workload_completion(WorkloadType::Compute, Duration::from_millis(10));
    pool.record_workload_completion(WorkloadType::Memory, Duration::from_micros(10));
    assert_eq!(
        lease(WorkloadType::Memory).raw_handle(),
        quick_handle,
        "three short ones are less than a long one"
    );
    gate.open();
    work.into_iter().for_each(|work| drop(work.wait().unwrap()));
    drop(there);
    drop(pool);
    setup.finish();
}

#[test]
fn priority_strategy_gives_urgent_work_more_streams() {
    let setup = Setup::new();
    let pool = make(&setup, 4, AllocationStrategy::Priority);
    let streams = |priority| {
        let leases: Vec<_> = (0..8).map(|_| pool.get_priority_stream(priority).unwrap()).collect();
        handles(&leases).len()
    };
    assert_eq!(PRIORITIES.map(streams), [4, 2, 1]);
    let barrier = pool.get_stream_for_workload(WorkloadType::Coordination).unwrap();
    assert_eq!(barrier.priority(), StreamPriority::High);
    let copy = pool.get_stream_for_workload(WorkloadType::Memory).unwrap();
    assert_eq!(copy.priority(), StreamPriority::Normal);
    drop((pool, barrier, copy));
    setup.finish();
}

#[test]
fn workload_strategy_keeps_copies_off_kernel_streams() {
    let setup = Setup::new();
    let pool = make(&setup, 6, AllocationStrategy::Workload);
    let split = pool.split();
    let of =
        |workload| -> Vec<_> { (0..9).map(|_| pool.get_stream_for_workload(workload).unwrap()).collect() };
    let held = WORKLOADS.map(of);
    let streams: Vec<_> = held.iter().map(handles).collect();
    assert_eq!(
        streams.iter().map(HashSet::len).collect::<Vec<_>>(),
        [split.compute, split.memory, split.mixed, split.coordination]
    );
    let all: HashSet<_> = streams.iter().flatten().collect();
    assert_eq!(all.len(), 6, "no stream has two workloads");
    drop(held);
    drop(pool);
    setup.finish();
}

#[test]
fn leases_outlive_the_pool_with_work_in_flight() {
    let setup = Setup::new();
    let pool = make(&setup, 2, AllocationStrategy::LoadBalanced);
    let there = setup.device(4096);
    let lease = pool.lease(StreamPriority::High, WorkloadType::Memory).unwrap();
    let queue = pool.lease(StreamPriority::High, WorkloadType::Memory).unwrap().into_queue();
    assert_eq!(pool.leases(), 2);
    let (low, high) = (there.slice(..2048).unwrap(), there.slice(2048..).unwrap());
    let gate = Gate::before(&setup.device, &[&lease]);
    let fill = lease.memset_async(&low, Pattern::U8(5));
    drop(pool);
    let operation = transload_core::Operation::Fill { dst: &high, pattern: Pattern::U8(6) };
    let other = transload_core::submit(&*queue, &operation, transload_core::Timing::Off).unwrap();
    // Of all that was submitted to the stream.
    let current = queue.current_fence().unwrap();
    assert!(current.point() >= other.point() && std::sync::Arc::ptr_eq(current.timeline(), other.timeline()));
    drop((queue, current));
    other.wait().unwrap();
    gate.open();
    fill.wait().unwrap();
    let back = setup.pinned(&[0; 4096]);
    lease.copy_to_host_async(&there, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().enumerate().all(|(at, byte)| *byte == 5 + u8::from(at >= 2048)));
    drop((lease, there, back, low, high, other));
    setup.finish();
}

#[test]
fn concurrent_leases_are_counted_back_to_zero() {
    limited(|| {
        for strategy in AllocationStrategy::ALL {
            let setup = Setup::new();
            let pool = make(&setup, 5, strategy);
            thread::scope(|scope| {
                for thread in 0..8 {
                    let pool = &pool;
                    scope.spawn(move || {
                        for round in 0..500 {
                            let priority = PRIORITIES[(thread + round) % 3];
                            let lease = pool.lease(priority, WORKLOADS[round % 4]).unwrap();
                            assert_eq!(lease.priority(), priority);
                            let queue = (round % 3 == 0)
                                .then(|| pool.lease(priority, WORKLOADS[0]).unwrap().into_queue());
                            if round % 64 == 0 {
                                pool.trim();
                            }
                            drop((lease, queue));
                        }
                    });
                }
            });
            assert_eq!(pool.leases(), 0, "{strategy}");
            for priority in PRIORITIES {
                assert!((1..=5).contains(&pool.streams(priority)), "{pool:?}");
            }
            pool.trim();
            assert_eq!(
                PRIORITIES.map(|priority| pool.streams(priority)),
                [1; 3],
                "{strategy}: without leases"
            );
            drop(pool);
            setup.finish();
        }
    });
}

#[test]
fn default_strategy_gives_each_copying_thread_a_stream() {
    limited(|| {
        let setup = Setup::new();
        let pool = AdvancedStreamPool::new(&setup.device).unwrap();
        let meet = std::sync::Barrier::new(8);
        let leases: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        meet.wait();
                        let lease = pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
                        meet.wait();
                        lease
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        if pool.split().memory >= 8 {
            assert_eq!(handles(&leases).len(), 8, "eight leases held at once, eight streams");
        }
        drop(leases);
        drop(pool);
        setup.finish();
    });
}

#[test]
fn pool_grows_under_load_and_trims_to_its_minimum() {
    let setup = Setup::new();
    let pool = AdvancedStreamPool::builder(&setup.device)
        .strategy(AllocationStrategy::LoadBalanced)
        .streams(2..=6)
        .quiet(Duration::MAX)
        .build()
        .unwrap();
    assert_eq!(pool.bounds(), 2..=6);
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let mut leases: Vec<_> = (0..10).map(|_| lease()).collect();
    assert_eq!(pool.streams(StreamPriority::Normal), 6);
    assert_eq!(pool.trim(), 0, "leased streams stay");
    // Three streams are leased, one of them with work.
    let mut kept = HashSet::new();
    leases.retain(|lease| kept.len() < 3 && kept.insert(lease.raw_handle()));
    let gate = Gate::before(&setup.device, &[&leases[0]]);
    let there = setup.device(16);
    let fill = leases[0].memset_async(&there, Pattern::U8(1));
    let busy = leases.remove(0).raw_handle();
    assert_eq!(pool.trim(), 3);
    assert_eq!(pool.streams(StreamPriority::Normal), 3);
    drop(leases);
    assert_eq!(pool.trim(), 1, "down to the least");
    assert_eq!(pool.streams(StreamPriority::Normal), 2);
    let all: Vec<_> = (0..8).map(|_| lease()).collect();
    assert!(all.iter().any(|lease| lease.raw_handle() == busy), "a busy stream is not retired");
    drop(all);
    gate.open();
    fill.wait().unwrap();
    assert_eq!(pool.trim(), 4);
    drop((pool, there));
    setup.finish();
}

#[test]
fn busy_pool_retires_one_idle_stream_at_a_time() {
    let setup = Setup::new();
    let pool = AdvancedStreamPool::builder(&setup.device)
        .strategy(AllocationStrategy::RoundRobin)
        .streams(1..=4)
        .quiet(Duration::ZERO)
        .build()
        .unwrap();
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let leases: Vec<_> = (0..4).map(|_| lease()).collect();
    drop(leases);
    assert_eq!(pool.streams(StreamPriority::Normal), 4);
    let mut seen = vec![4];
    for _ in 0..5000 {
        drop(lease());
        let now = pool.streams(StreamPriority::Normal);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    assert_eq!(seen, [4, 3, 2, 1]);
    let slow =
        AdvancedStreamPool::builder(&setup.device).streams(1..=4).quiet(Duration::MAX).build().unwrap();
    let leases: Vec<_> =
        (0..4).map(|_| slow.get_stream_for_workload(WorkloadType::Compute).unwrap()).collect();
    let grown = slow.streams(StreamPriority::Normal);
    drop(leases);
    for _ in 0..5000 {
        drop(slow.get_stream_for_workload(WorkloadType::Compute).unwrap());
    }
    assert_eq!(slow.streams(StreamPriority::Normal), grown);
    drop((pool, slow));
    setup.finish();
}

#[test]
fn new_strategy_applies_from_the_next_lease() {
    let setup = Setup::new();
    let pool = make(&setup, 4, AllocationStrategy::LoadBalanced);
    let lease = |priority| pool.lease(priority, WorkloadType::Memory).unwrap();
    let held: Vec<_> = (0..4).map(|_| lease(StreamPriority::Low)).collect();
    pool.set_strategy(AllocationStrategy::Priority);
    assert_eq!(pool.strategy(), AllocationStrategy::Priority);
    let later: Vec<_> = (0..4).map(|_| lease(StreamPriority::Low)).collect();
    assert_eq!(handles(&later).len(), 1);
    drop((held, later));
    assert_eq!(pool.trim(), 3);
    drop(pool);
    setup.finish();
}

#[test]
fn thread_keeps_a_cursor_per_pool() {
    let setup = Setup::new();
    let pools: Vec<_> = (0..30).map(|_| make(&setup, 2, AllocationStrategy::RoundRobin)).collect();
    let leases = |pool: &AdvancedStreamPool| {
        PRIORITIES.map(|priority| pool.lease(priority, WorkloadType::Mixed).unwrap())
    };
    for _ in 0..3 {
        for pool in &pools {
            // The first lease creates both streams of each priority.
            drop((leases(pool), leases(pool)));
            let [one, other] = [leases(pool).map(|lease| lease.id()), leases(pool).map(|lease| lease.id())];
            assert!(one.iter().zip(&other).all(|(one, other)| one != other), "in turn");
        }
    }
    drop(pools);
    setup.finish();
}
