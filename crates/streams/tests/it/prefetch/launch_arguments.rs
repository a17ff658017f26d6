//! Launch arguments in the prediction: each is a stream of its own, unified memory only, and forgotten once dropped.

use std::sync::Arc;

use transload_core::{MemoryKind, RawBuffer};
use transload_memory::{AutoPrefetcher, PredictionLimits};
use transload_streams::CudaStream;

use crate::support::setup::Setup;

/// Chunks of 64 KiB share no page.
const CHUNK: usize = 65_536;

fn able(limits: PredictionLimits) -> Option<(Setup, AutoPrefetcher)> {
    let setup = Setup::sharing()?;
    let queue = Arc::new(CudaStream::new(&setup.device).unwrap());
    let auto = AutoPrefetcher::new(&setup.device, queue, limits).unwrap();
    Some((setup, auto))
}

fn chunk(buffer: &RawBuffer, index: usize) -> RawBuffer {
    buffer.slice(index * CHUNK..(index + 1) * CHUNK).unwrap()
}

#[test]
fn two_arguments_sweeping_one_allocation_are_both_predicted() {
    let Some((setup, auto)) = able(PredictionLimits::default()) else { return };
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
fn memory_of_other_kinds_is_ignored() {
    let Some((setup, auto)) = able(PredictionLimits::default()) else { return };
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
fn dropped_buffer_in_a_repetition_is_no_misprediction() {
    // With one range ahead it is predicted only at its turn.
    let limits = PredictionLimits { depth: 1, ..PredictionLimits::default() };
    let Some((setup, auto)) = able(limits) else { return };
    let mut layers: Vec<_> =
        (0..4).map(|_| setup.memory.allocate(MemoryKind::Unified, CHUNK).unwrap()).collect();
    let steps = |layers: &[RawBuffer], count: usize| {
        for layer in (0..count).flat_map(|_| layers) {
            let _prefetched = auto.observe(&[layer]);
            // Moved back to the host, since resident memory would be skipped.
            drop(layer.write().unwrap());
        }
        auto.statistics()
    };
    let before = steps(&layers, 5);
    assert!(before.hits > 0, "{before:?}");
    drop(layers.remove(2));
    let after = steps(&layers, 5);
    assert!(after.hits > before.hits + 3 && after.misses == 0, "{before:?} {after:?}");
    drop((auto, layers));
    setup.finish();
}
