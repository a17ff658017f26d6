//! A set of ranges, compared with a set of bytes.

use super::*;

#[test]
fn ranges_behave_like_a_set_of_bytes() {
    const BYTES: usize = 40;
    let mut seed = 12_345_u64;
    let mut below = |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % bound
    };
    for _ in 0..200 {
        let (mut ranges, mut bytes) = (Ranges::default(), [false; BYTES]);
        for _ in 0..20 {
            let start = below(BYTES);
            let range = start..start + below(BYTES - start + 1);
            let insert = below(2) == 0;
            if insert {
                ranges.insert(range.clone())
            } else {
                ranges.remove(&range)
            }
            bytes[range.clone()].fill(insert);
            let asked = below(BYTES / 2)..BYTES - below(BYTES / 2);
            assert_eq!(ranges.covers(&asked), bytes[asked.clone()].iter().all(|there| *there));
            let mut known = [true; BYTES];
            ranges.missing(&asked).into_iter().for_each(|part| known[part].fill(false));
            for at in asked {
                assert_eq!(known[at], bytes[at], "byte {at} of {ranges:?}");
            }
            assert_eq!(ranges.len(), ranges.clone().into_iter().count());
            assert!(ranges.0.iter().all(|range| !range.is_empty()), "{ranges:?}");
            assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        }
    }
}
