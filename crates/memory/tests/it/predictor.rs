//! What the predictor promises whoever feeds it: its bounds, and that it forgets.

use transload_memory::{AccessPredictor, DeclaredAccess};

const OF: usize = 1 << 20;

fn access(buffer: u32, start: usize) -> DeclaredAccess<u32> {
    DeclaredAccess { buffer, lane: 0, start, len: 100, of: OF }
}

/// The most ranges that were predicted at once in a long sweep.
fn furthest(depth: usize) -> usize {
    let mut predictor = AccessPredictor::new(depth, usize::MAX);
    let (mut most, mut ahead) = (0, 0);
    for index in 0..200 {
        ahead += predictor.observe(access(1, index * 100)).len();
        most = most.max(ahead);
        ahead = ahead.saturating_sub(1);
    }
    most
}

#[test]
fn a_depth_out_of_its_range_is_the_nearest_one_within() {
    assert_eq!((furthest(0), furthest(1)), (1, 1), "one range ahead at least");
    assert_eq!(furthest(5), 5);
    let deepest = AccessPredictor::<u32>::DEEPEST;
    assert_eq!((furthest(deepest), furthest(deepest + 1), furthest(usize::MAX)), (deepest, deepest, deepest));
}

#[test]
fn what_is_forgotten_has_to_be_seen_again_before_it_is_believed() {
    let mut predictor = AccessPredictor::new(4, usize::MAX);
    let believed = |predictor: &mut AccessPredictor<u32>, from: usize| {
        (from..from + 3).map(|index| predictor.observe(access(1, index * 100)).len()).collect::<Vec<_>>()
    };
    assert_eq!(believed(&mut predictor, 0), [0, 0, 1], "from the third on");
    predictor.forget(1);
    assert_eq!(believed(&mut predictor, 3)[..2], [0, 0], "as at the beginning");
}

#[test]
fn what_runs_beside_each_other_through_one_allocation_is_told_apart_by_its_lane() {
    let mut predictor = AccessPredictor::new(1, usize::MAX);
    let mut hits = 0;
    for index in 0..10 {
        for (lane, start) in [(0, index * 100), (1, OF - (index + 1) * 100)] {
            let predicted = predictor.observe(DeclaredAccess { lane, ..access(1, start) });
            hits += usize::from(!predicted.is_empty());
        }
    }
    assert!(hits >= 14, "each lane from its third access on: {hits}");
}
