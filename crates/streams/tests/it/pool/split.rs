//! The workload split of a pool: which streams each workload gets.

use std::collections::HashSet;

use transload_core::StreamPriority;
use transload_streams::{AdvancedStreamPool, WorkloadSplit};

use crate::{pool::WORKLOADS, support::setup::Setup};

#[test]
fn every_workload_has_streams_whatever_the_split() {
    let setup = Setup::new();
    for streams in 1..=64 {
        assert_eq!(WorkloadSplit::of(streams).total(), streams);
    }
    let places = |split| {
        let pool = AdvancedStreamPool::builder(&setup.device).split(split).build().unwrap();
        // All streams, then those of each workload.
        let all: Vec<_> = WORKLOADS
            .iter()
            .flat_map(|workload| (0..5).map(|_| pool.lease(StreamPriority::Normal, *workload).unwrap()))
            .collect();
        let sets = all.chunks(5).map(|leases| leases.iter().map(|lease| lease.id()).collect::<HashSet<_>>());
        sets.collect::<Vec<_>>()
    };
    let [compute, memory, mixed, coordination] = &places(WorkloadSplit::of(4))[..] else { panic!() };
    let each = [compute, memory, mixed, coordination].map(HashSet::len);
    assert_eq!(each, [1; 4]);
    assert_eq!(
        compute.iter().chain(memory).chain(mixed).chain(coordination).collect::<HashSet<_>>().len(),
        4
    );
    let of =
        |compute, memory, mixed, coordination| places(WorkloadSplit { compute, memory, mixed, coordination });
    for only in [of(2, 0, 0, 0), of(0, 2, 0, 0), of(0, 0, 2, 0), of(0, 0, 0, 2)] {
        assert!(only[0].len() == 2 && only.iter().all(|streams| *streams == only[0]), "{only:?}");
    }
    let [compute, memory, mixed, coordination] = &of(1, 2, 0, 0)[..] else { panic!() };
    assert!(compute.is_disjoint(memory) && (compute.len(), memory.len()) == (1, 2));
    assert_eq!((mixed, coordination), (compute, memory));
    setup.finish();
}
