//! The pool's optimiser on recorded workloads: each recommendation is measured to be better on its own workload.

use std::time::Duration;

use transload_core::{ErrorKind, WorkloadType};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, Optimization, WorkloadSplit};

use crate::support::setup::Setup;

#[path = "../../../../../benches/src/streams/workload.rs"]
mod workload;

use workload::{Workload, WorkloadItem, WorkloadOp, WorkloadRun, run_workload};

fn pool(setup: &Setup, strategy: AllocationStrategy) -> AdvancedStreamPool {
    AdvancedStreamPool::new_with_strategy(&setup.device, 4, strategy).unwrap()
}

/// Runs a workload on a pool of the strategy, optimises the pool, and runs it again.
fn optimized(
    setup: &Setup,
    strategy: AllocationStrategy,
    load: &Workload,
) -> (WorkloadRun, Optimization, WorkloadRun) {
    let pool = pool(setup, strategy);
    let before = run_workload(&pool, &setup.device, &setup.memory, load).unwrap();
    let optimization = pool.optimize_configuration();
    let after = run_workload(&pool, &setup.device, &setup.memory, load).unwrap();
    assert_eq!((pool.strategy(), pool.split()), optimization.after);
    assert_eq!(pool.leases(), 0);
    (before, optimization, after)
}

#[test]
fn each_workload_is_fastest_with_its_own_recommendation() {
    let setup = Setup::new();
    let equal = Workload::of_equal_kernels(64);
    let mixed = Workload::of_kernels_and_copies(16);
    let (by_workload, answer, in_turn) = optimized(&setup, AllocationStrategy::Workload, &equal);
    println!("{answer}\n  before {by_workload}\n  after {in_turn}");
    if setup.test.is_simulated() {
        // Times of a real device vary, and so may the best strategy.
        assert_eq!(answer.after.0, AllocationStrategy::RoundRobin);
        assert!(answer.changed());
        assert!(in_turn.makespan * 2 < by_workload.makespan, "{in_turn} against {by_workload}");
        assert!(in_turn.mean * 2 < by_workload.mean, "{in_turn} against {by_workload}");
    }
    let (in_turn, answer, by_workload) = optimized(&setup, AllocationStrategy::RoundRobin, &mixed);
    println!("{answer}\n  before {in_turn}\n  after {by_workload}");
    if setup.test.is_simulated() {
        assert_eq!(answer.after.0, AllocationStrategy::Workload);
        assert_eq!(answer.after.1.compute, 3, "{answer}");
        assert!(by_workload.makespan < in_turn.makespan, "{by_workload} against {in_turn}");
        // The end of the small copies depends on which ready stream is served first, and so does the mean.
        let kernels = |replay: &WorkloadRun| replay.mean_completion(WorkloadType::Compute).unwrap();
        assert!(kernels(&by_workload) < kernels(&in_turn), "{by_workload} against {in_turn}");
    }
    setup.finish();
}

#[test]
fn unequal_work_of_one_workload_is_balanced() {
    let setup = Setup::new();
    let pool = pool(&setup, AllocationStrategy::RoundRobin);
    for round in 0..40 {
        let micros = if round % 4 == 0 { 900 } else { 10 };
        pool.record_workload_completion(WorkloadType::Mixed, Duration::from_micros(micros));
    }
    let answer = pool.optimize_configuration();
    assert_eq!(answer.after.0, AllocationStrategy::LoadBalanced, "{answer}");
    assert_eq!(pool.strategy(), AllocationStrategy::LoadBalanced);
    drop(pool);
    setup.finish();
}

#[test]
fn too_little_data_changes_nothing_and_says_so() {
    let setup = Setup::new();
    let pool = pool(&setup, AllocationStrategy::Priority);
    assert_eq!(pool.average_workload_time(WorkloadType::Compute), None);
    for _ in 0..31 {
        pool.record_workload_completion(WorkloadType::Compute, Duration::from_micros(20));
    }
    assert_eq!(pool.average_workload_time(WorkloadType::Compute), Some(Duration::from_micros(20)));
    let answer = pool.optimize_configuration();
    assert!(!answer.changed());
    assert_eq!(
        answer.to_string(),
        "Priority, as before: 31 completions were recorded, a decision needs 32\n  31 × Compute of 20.0µs ± 0 %"
    );
    assert_eq!(pool.strategy(), AllocationStrategy::Priority);
    pool.record_workload_completion(WorkloadType::Compute, Duration::from_micros(20));
    assert!(pool.optimize_configuration().changed(), "what was recorded before counts");
    assert_eq!(pool.optimize_configuration().seen, [], "and counts once");
    drop(pool);
    setup.finish();
}

#[test]
fn an_empty_load_is_refused() {
    let setup = Setup::new();
    let pool = pool(&setup, AllocationStrategy::RoundRobin);
    let item = |bytes| WorkloadItem {
        priority: transload_core::StreamPriority::Normal,
        workload: WorkloadType::Memory,
        work: WorkloadOp::Upload { bytes },
    };
    for items in [vec![], vec![item(0)], vec![item(usize::MAX), item(1)]] {
        let error = run_workload(&pool, &setup.device, &setup.memory, &Workload { items }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    drop(pool);
    setup.finish();
}

/// Records that many operations of each workload and returns the recommendation.
fn answer(pool: &AdvancedStreamPool, recorded: &[(WorkloadType, usize, u64)]) -> Optimization {
    for (workload, count, micros) in recorded {
        (0..*count).for_each(|_| pool.record_workload_completion(*workload, Duration::from_micros(*micros)));
    }
    pool.optimize_configuration()
}

#[test]
fn the_time_of_each_workload_decides_how_many_streams_it_has() {
    let setup = Setup::new();
    let seen = [(WorkloadType::Compute, 100, 300), (WorkloadType::Memory, 100, 10)];
    let pool = |streams| {
        let strategy = AllocationStrategy::Priority;
        AdvancedStreamPool::new_with_strategy(&setup.device, streams, strategy).unwrap()
    };
    let split = WorkloadSplit { compute: 7, memory: 1, mixed: 0, coordination: 0 };
    assert_eq!(answer(&pool(8), &seen).after, (AllocationStrategy::Workload, split));
    assert_eq!(answer(&pool(1), &seen).after.0, AllocationStrategy::LoadBalanced, "one stream has no parts");
    let three = [seen[0], seen[1], (WorkloadType::Mixed, 100, 10)];
    assert_eq!(answer(&pool(2), &three).after.1, WorkloadSplit::of(2), "more workloads than streams");
    setup.finish();
}

#[test]
fn recommendation_covers_data_since_the_last_one() {
    let setup = Setup::new();
    let pool = pool(&setup, AllocationStrategy::Priority);
    let average = || pool.average_workload_time(WorkloadType::Compute);
    for _ in 0..10_000 {
        pool.record_workload_completion(WorkloadType::Compute, Duration::MAX);
    }
    for nanos in 0..256 {
        pool.record_workload_completion(WorkloadType::Compute, Duration::from_nanos(nanos));
    }
    assert_eq!(average(), Some(Duration::from_nanos(127)));
    assert_eq!(pool.average_workload_time(WorkloadType::Memory), None);
    assert!(pool.optimize_configuration().seen[0].count > 10_000);
    let answer = answer(&pool, &[(WorkloadType::Compute, 16, 10), (WorkloadType::Compute, 16, 30)]);
    let seen = &answer.seen[0];
    assert_eq!((answer.seen.len(), seen.count), (1, 32));
    assert_eq!((seen.mean, seen.spread), (Duration::from_micros(20), 0.5));
    assert_eq!(seen.to_string(), "32 × Compute of 20.0µs ± 50 %");
    drop(pool);
    setup.finish();
}
