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
            let end = indices.iter().max().unwrap() + 1;
            // In a pool that they fill, and in one of which they are a small part.
            let [found, same] = [end, usize::MAX].map(|blocks| runs(&indices, blocks).unwrap());
            assert_eq!(found, same, "{indices:?}");
            assert_eq!(found, sorted_runs(indices.clone()), "{indices:?}");
            assert_eq!(found.1, repeated, "{indices:?}");
            assert_eq!(runs(&indices, end - 1), None, "{indices:?}");
            let mut all: Vec<_> = found.0.into_iter().flatten().collect();
            let mut expected = indices;
            expected.sort_unstable();
            expected.dedup();
            all.dedup();
            assert_eq!(all, expected);
        }
    }
}
