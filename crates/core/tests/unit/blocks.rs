//! The order of indices.

use super::*;

#[test]
fn runs_of_indices_and_repetitions_match_sorting_however_far_apart() {
    for far in [7, 64, 127, 128, 1 << 20, usize::MAX - 1] {
        for (indices, repeated) in [
            (vec![3, far, 5, 0, 4], false),
            (vec![3, far, 5, 0, far, 5], true),
            (vec![far], false),
            ((3..70).collect(), false),
            ((0..140).rev().collect(), false),
            (vec![0, 1, 1, 3], true),
        ] {
            let bounds = bounds("source", &indices, usize::MAX, 1).unwrap();
            let found = runs(&indices, &bounds);
            assert_eq!(found, sorted_runs(indices.clone()), "{indices:?}");
            assert_eq!(found.1, repeated, "{indices:?}");
            let mut all: Vec<_> = found.0.into_iter().flatten().collect();
            let mut expected = indices;
            expected.sort_unstable();
            expected.dedup();
            all.dedup();
            assert_eq!(all, expected);
        }
    }
}
