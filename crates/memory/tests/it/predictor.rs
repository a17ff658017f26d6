//! What the predictor detects, how soon, and what it never does.

use proptest::prelude::*;
use transload_memory::{AccessPredictor, DeclaredAccess, PredictedAccess};

const CHUNK: usize = 1 << 20;
const OF: usize = 1 << 20;

fn access(buffer: u32, start: usize, len: usize, of: usize) -> DeclaredAccess<u32> {
    DeclaredAccess { buffer, argument: 0, start, len, allocation_len: of }
}

fn covers(predicted: &PredictedAccess<u32>, access: &DeclaredAccess<u32>) -> bool {
    predicted.buffer == access.buffer
        && predicted.start <= access.start
        && access.start + access.len <= predicted.start + predicted.len
}

/// Observes the accesses; returns how many were predicted in advance, and how many ranges were predicted.
fn run(predictor: &mut AccessPredictor<u32>, accesses: &[DeclaredAccess<u32>]) -> (usize, usize) {
    let (mut open, mut right, mut all) = (Vec::<PredictedAccess<u32>>::new(), 0, 0);
    for access in accesses {
        if let Some(at) = open.iter().position(|predicted| covers(predicted, access)) {
            open.swap_remove(at);
            right += 1;
        }
        let fresh = predictor.observe(*access);
        all += fresh.len();
        open.extend_from_slice(fresh);
    }
    (right, all)
}

#[test]
fn sweep_is_predicted_from_its_third_chunk_to_its_end() {
    let of = 20 * CHUNK + 100;
    let sweep: Vec<_> =
        (0..=20).map(|index| access(1, index * CHUNK, CHUNK.min(of - index * CHUNK), of)).collect();
    let mut predictor = AccessPredictor::new(4, usize::MAX);
    let (right, all) = run(&mut predictor, &sweep);
    assert_eq!((right, all), (18, 18), "all but the first three, the short last one as well");
    assert_eq!(predictor.hits_and_misses(), (18, 0));
}

#[test]
fn concurrent_forward_and_backward_strides_are_found() {
    let of = 64 * CHUNK;
    let mut both = Vec::new();
    for index in 0..20 {
        both.push(DeclaredAccess { argument: 1, ..access(1, index * 3 * CHUNK, CHUNK, of) });
        both.push(DeclaredAccess { argument: 2, ..access(1, of - (index + 1) * 2 * CHUNK, CHUNK, of) });
        both.push(access(2, 0, CHUNK, CHUNK));
    }
    let mut predictor = AccessPredictor::new(4, usize::MAX);
    let (right, all) = run(&mut predictor, &both);
    assert!(right >= 34, "{right} of 40 that move");
    assert!(all <= right + 8, "{all} predicted, {right} used: at most what lies ahead is left over");
}

#[test]
fn four_buffers_of_a_launch_are_all_predicted() {
    let of = 20 * CHUNK;
    for first in (0..2_000).step_by(4) {
        let launches: Vec<_> = (0..20)
            .flat_map(|index| {
                let of_lane = move |argument| DeclaredAccess {
                    argument,
                    ..access(first + argument, index * CHUNK, CHUNK, of)
                };
                (0..4).map(of_lane)
            })
            .collect();
        let mut predictor = AccessPredictor::new(4, usize::MAX);
        let (right, all) = run(&mut predictor, &launches);
        assert_eq!((right, all), (4 * 17, 4 * 17), "buffers {first} and the next three");
    }
}

#[test]
fn repeated_order_is_predicted_from_the_third_step() {
    let step: Vec<_> = [5, 3, 9, 3, 1, 7, 2, 5, 8].iter().map(|of| access(*of, 0, CHUNK, CHUNK)).collect();
    let steps: Vec<_> = (0..6).flat_map(|_| step.clone()).collect();
    let mut predictor = AccessPredictor::new(3, usize::MAX);
    let first = run(&mut predictor, &steps[..18]);
    assert_eq!(first, (0, 0), "two steps are seen before anything is believed");
    let (right, all) = run(&mut predictor, &steps[18..]);
    assert!(right >= 33, "{right} of 36");
    assert!(all - right <= 3, "{all} predicted");
    assert_eq!(predictor.hits_and_misses().1, 0);
}

#[test]
fn predictions_grow_with_hits_up_to_depth_and_bytes() {
    let of = 100 * CHUNK;
    let mut predictor = AccessPredictor::new(4, 3 * CHUNK);
    let counts: Vec<usize> =
        (0..12).map(|index| predictor.observe(access(1, index * CHUNK, CHUNK, of)).len()).collect();
    assert_eq!(counts, [0, 0, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1], "one, two, then as many as the bytes allow");
}

#[test]
fn each_miss_doubles_the_pause_and_a_hit_halves_it() {
    /// More than the longest pause.
    const OF: usize = 10_000;
    let mut predictor = AccessPredictor::new(1, usize::MAX);
    let mut buffer = 0;
    // Accesses of a sweep over a new buffer until something is predicted; with `vain` it breaks off there.
    let mut until_predicted = |predictor: &mut AccessPredictor<u32>, vain: bool| {
        buffer += 1;
        let predicts = |start: &usize| !predictor.observe(access(buffer, *start, 1, OF)).is_empty();
        let first = (0..OF).find(predicts).unwrap();
        if vain {
            // A stride tolerates some interruption.
            for _ in 0..3 {
                assert!(predictor.observe(access(buffer, OF - 1, 1, OF)).is_empty());
            }
        }
        first + 1
    };
    assert_eq!(until_predicted(&mut predictor, true), 3, "before any was in vain");
    for doubled in 0..12_u32 {
        assert_eq!(until_predicted(&mut predictor, true), 8 << doubled.min(9));
    }
    until_predicted(&mut predictor, false);
    (0..100).for_each(|index| drop(predictor.observe(access(0, index, 1, OF)).to_vec()));
    assert!(predictor.hits_and_misses().0 > 12, "{:?}", predictor.hits_and_misses());
    until_predicted(&mut predictor, true);
    assert!(until_predicted(&mut predictor, true) <= 16);
}

#[test]
fn dropped_buffer_is_not_predicted() {
    let step: Vec<_> = (1..=6).map(|buffer| access(buffer, 0, CHUNK, CHUNK)).collect();
    let mut predictor = AccessPredictor::new(4, usize::MAX);
    for _ in 0..4 {
        run(&mut predictor, &step);
    }
    predictor.forget(3);
    let mut seen = Vec::new();
    for access in step.iter().filter(|access| access.buffer != 3) {
        seen.extend_from_slice(predictor.observe(*access));
    }
    assert!(seen.iter().all(|predicted| predicted.buffer != 3), "{seen:?}");
}

#[test]
fn invalid_access_is_ignored() {
    let mut predictor = AccessPredictor::new(4, usize::MAX);
    for start in 0..50 {
        assert!(predictor.observe(access(1, start, 0, 100)).is_empty());
        assert!(predictor.observe(access(1, start, usize::MAX, usize::MAX - 1)).is_empty());
        assert!(predictor.observe(access(1, 100 + start, 1, 100)).is_empty());
    }
    assert_eq!(predictor.hits_and_misses(), (0, 0));
}

/// The most ranges that were predicted at once in a long sweep.
fn furthest(depth: usize) -> usize {
    let mut predictor = AccessPredictor::new(depth, usize::MAX);
    let (mut most, mut ahead) = (0, 0);
    for index in 0..200 {
        ahead += predictor.observe(access(1, index * 100, 100, OF)).len();
        most = most.max(ahead);
        ahead = ahead.saturating_sub(1);
    }
    most
}

#[test]
fn depth_is_clamped() {
    assert_eq!((furthest(0), furthest(1)), (1, 1), "one range ahead at least");
    assert_eq!(furthest(5), 5);
    let deepest = AccessPredictor::<u32>::MAX_DEPTH;
    assert_eq!((furthest(deepest), furthest(deepest + 1), furthest(usize::MAX)), (deepest, deepest, deepest));
}

#[test]
fn forgotten_stride_must_be_confirmed_again() {
    let mut predictor = AccessPredictor::new(4, usize::MAX);
    let believed = |predictor: &mut AccessPredictor<u32>, from: usize| {
        (from..from + 3)
            .map(|index| predictor.observe(access(1, index * 100, 100, OF)).len())
            .collect::<Vec<_>>()
    };
    assert_eq!(believed(&mut predictor, 0), [0, 0, 1], "from the third on");
    predictor.forget(1);
    assert_eq!(believed(&mut predictor, 3)[..2], [0, 0], "as at the beginning");
}

#[test]
fn concurrent_sweeps_are_told_apart_by_argument() {
    let mut predictor = AccessPredictor::new(1, usize::MAX);
    let mut hits = 0;
    for index in 0..10 {
        for (argument, start) in [(0, index * 100), (1, OF - (index + 1) * 100)] {
            let predicted = predictor.observe(DeclaredAccess { argument, ..access(1, start, 100, OF) });
            hits += usize::from(!predicted.is_empty());
        }
    }
    assert!(hits >= 14, "each argument from its third access on: {hits}");
}

fn any_access() -> impl Strategy<Value = DeclaredAccess<u32>> {
    (0..6_u32, 0..3_u32, 0..40_usize, 1..4_usize).prop_map(|(buffer, argument, start, len)| DeclaredAccess {
        buffer,
        argument,
        start: start * 10,
        len: len * 10,
        allocation_len: 400 + 7 * buffer as usize,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_prediction_leaves_its_buffer_and_memory_stays_bounded(
        accesses in prop::collection::vec(any_access(), 0..400),
        repeats in 1..6_usize,
        depth in 0..40_usize,
        bytes in 0..200_usize,
    ) {
        let mut predictor = AccessPredictor::new(depth, bytes);
        for _ in 0..repeats {
            for access in &accesses {
                let fresh = predictor.observe(*access).to_vec();
                prop_assert!(fresh.len() <= AccessPredictor::<u32>::MAX_DEPTH);
                prop_assert!(fresh.iter().map(|predicted| predicted.len).sum::<usize>() <= bytes);
                for predicted in fresh {
                    prop_assert!(predicted.len > 0);
                    prop_assert!(predicted.start + predicted.len <= 400 + 7 * predicted.buffer as usize);
                    prop_assert!(!covers(&predicted, access));
                }
            }
        }
    }

    #[test]
    fn the_same_accesses_give_the_same_predictions(accesses in prop::collection::vec(any_access(), 0..300)) {
        let (mut one, mut other) = (AccessPredictor::new(4, 1000), AccessPredictor::new(4, 1000));
        for access in &accesses {
            prop_assert_eq!(one.observe(*access), other.observe(*access));
        }
    }

    #[test]
    fn every_stride_is_found_within_three_accesses(stride in 1..50_usize, len in 1..50_usize, backwards: bool) {
        let of = 40 * stride + len;
        let mut predictor = AccessPredictor::new(4, usize::MAX);
        let starts = (0..40).map(|index| if backwards { (39 - index) * stride } else { index * stride });
        let all: Vec<_> = starts.map(|start| access(1, start, len, of)).collect();
        let (right, _) = run(&mut predictor, &all);
        prop_assert_eq!(right, 37);
    }

    #[test]
    fn unambiguous_order_is_found_within_two_steps(
        order in Just((0..60_u32).collect::<Vec<_>>()).prop_shuffle(),
        period in 3..60_usize,
    ) {
        let step: Vec<_> = order[..period].iter().map(|buffer| access(*buffer, 0, 100, 100)).collect();
        let mut predictor = AccessPredictor::new(1, usize::MAX);
        for _ in 0..2 {
            run(&mut predictor, &step);
        }
        run(&mut predictor, &step[..3]);
        let (right, _) = run(&mut predictor, &step[3..]);
        prop_assert!(right + 2 >= period - 3, "{} of {}", right, period - 3);
    }

    #[test]
    fn of_random_accesses_few_are_predicted(seed: u64, chunks in 16..64_usize) {
        let mut state = seed | 1;
        let all: Vec<_> = (0..4000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                access(1, (state >> 33) as usize % chunks * 100, 100, chunks * 100)
            })
            .collect();
        let mut predictor = AccessPredictor::new(8, usize::MAX);
        let (_, predicted) = run(&mut predictor, &all);
        prop_assert!(predicted <= 80, "{} predictions of 4000 random accesses", predicted);
    }
}
