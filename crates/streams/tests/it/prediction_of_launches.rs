//! What a launch's arguments are to the prediction: each a line of its own, unified memory only, and forgotten when it is gone.

use std::sync::Arc;

use transload_core::{MemoryKind, RawBuffer};
use transload_memory::{AutoPrefetcher, CudaFeature, PredictionLimits};
use transload_streams::CudaStream;

use crate::setup::Setup;

/// Chunks of 64 KiB share no page.
const CHUNK: usize = 65_536;

fn able() -> Option<(Setup, AutoPrefetcher)> {
    let setup = Setup::new();
    if !setup.device.supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap() {
        println!("skipped: the device has no concurrent access to unified memory");
        return None;
    }
    let queue = Arc::new(CudaStream::new(&setup.device).unwrap());
    let auto = AutoPrefetcher::new(&setup.device, queue, PredictionLimits::default()).unwrap();
    Some((setup, auto))
}

fn chunk(buffer: &RawBuffer, index: usize) -> RawBuffer {
    buffer.slice(index * CHUNK..(index + 1) * CHUNK).unwrap()
}

#[test]
fn two_arguments_that_sweep_one_allocation_from_both_ends_are_both_predicted() {
    let Some((setup, auto)) = able() else { return };
    let buffer = setup.memory.allocate(MemoryKind::Unified, 40 * CHUNK).unwrap();
    buffer.write().unwrap().fill(1);
    let mut prefetched = 0;
    for index in 0..10 {
        prefetched += auto.observe(&[&chunk(&buffer, index), &chunk(&buffer, 39 - index)]);
    }
    let statistics = auto.statistics();
    assert_eq!((statistics.observed, statistics.misses), (20, 0), "{statistics:?}");
    assert!(statistics.hits >= 14 && prefetched >= 14, "from the third launch on: {statistics:?}");
    drop((auto, buffer));
    setup.finish();
}

#[test]
fn memory_of_other_kinds_is_of_no_concern() {
    let Some((setup, auto)) = able() else { return };
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped] {
        let buffer = setup.memory.allocate(kind, 8 * CHUNK).unwrap();
        for index in 0..8 {
            assert_eq!(auto.observe(&[&chunk(&buffer, index)]), 0, "{kind}");
        }
    }
    assert_eq!(auto.statistics(), Default::default(), "they are not even counted");
    drop(auto);
    setup.finish();
}

#[test]
fn a_repetition_goes_on_without_a_buffer_that_is_gone() {
    let Some((setup, auto)) = able() else { return };
    let mut layers: Vec<_> =
        (0..4).map(|_| setup.memory.allocate(MemoryKind::Unified, CHUNK).unwrap()).collect();
    for _ in 0..4 {
        layers.iter().for_each(|layer| {
            let _prefetched = auto.observe(&[layer]);
        });
    }
    assert!(auto.statistics().hits > 0, "{:?}", auto.statistics());
    let gone = layers.remove(2);
    drop(gone);
    for _ in 0..40 {
        layers.iter().for_each(|layer| {
            let _prefetched = auto.observe(&[layer]);
        });
    }
    let before = auto.statistics().hits;
    for _ in 0..4 {
        layers.iter().for_each(|layer| {
            let _prefetched = auto.observe(&[layer]);
        });
    }
    assert!(auto.statistics().hits > before, "what is left is predicted: {:?}", auto.statistics());
    assert!(setup.memory.ledger().allocations <= 4, "nobody keeps it alive");
    drop((auto, layers));
    setup.finish();
}
