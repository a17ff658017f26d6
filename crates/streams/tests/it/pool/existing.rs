//! Leases for tasks: of streams that exist.

use std::time::Duration;

use transload_core::{Queue, StreamPriority, WorkloadType};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, StreamLease};

use super::handles;
use crate::support::{gate::Gate, setup::Setup};

const WHAT: (StreamPriority, WorkloadType) = (StreamPriority::Normal, WorkloadType::Memory);

fn existing(pool: &AdvancedStreamPool) -> Option<StreamLease> {
    pool.lease_existing(WHAT.0, WHAT.1)
}

#[test]
fn lease_for_a_task_creates_and_retires_no_stream() {
    let setup = Setup::new();
    for strategy in [AllocationStrategy::LoadBalanced, AllocationStrategy::RoundRobin] {
        let builder = AdvancedStreamPool::builder(&setup.device).streams(1..=3).strategy(strategy);
        let pool = builder.quiet(Duration::ZERO).build().unwrap();
        assert!(existing(&pool).is_none());
        let leases: Vec<_> = (0..3).map(|_| pool.lease(WHAT.0, WHAT.1).unwrap()).collect();
        assert_eq!(handles(&leases).len(), 3);
        let all = handles(&leases);
        drop(leases);
        for _ in 0..5000 {
            assert!(all.contains(&existing(&pool).unwrap().raw_handle().unwrap()));
        }
        assert_eq!(pool.streams(WHAT.0), 3);
        for _ in 0..5000 {
            drop(pool.lease(WHAT.0, WHAT.1).unwrap());
        }
        assert!(pool.streams(WHAT.0) < 3);
    }
    setup.finish();
}

#[test]
fn task_gets_a_busy_stream_only_of_a_full_pool() {
    let setup = Setup::new();
    let pool =
        AdvancedStreamPool::new_with_strategy(&setup.device, 2, AllocationStrategy::LoadBalanced).unwrap();
    let one = pool.lease(WHAT.0, WHAT.1).unwrap();
    assert!(existing(&pool).is_none());
    let other = pool.lease(WHAT.0, WHAT.1).unwrap();
    let gate = Gate::before(&setup.device, &[&one, &other]);
    let both = [&one, &other].map(|lease| lease.raw_handle().unwrap());
    let pending = [&one, &other].map(|lease| lease.fence().unwrap());
    assert!(both.contains(&existing(&pool).unwrap().raw_handle().unwrap()));
    gate.open();
    pending.iter().for_each(|fence| fence.wait().unwrap());
    drop((one, other, pending, pool));
    setup.finish();
}
