//! A batch is refused exactly if one of its destinations overlaps another of its ranges.

use proptest::prelude::*;
use transload_core::{ErrorKind, Operation, RawBuffer};

use crate::mock::buffer;

/// One side of a pair: which buffer, and where in it.
type Side = (usize, usize);

/// Byte by byte: no byte that is written may be touched by anything else of the batch.
fn is_apart(pairs: &[(Side, Side, usize)]) -> bool {
    let mut touched = [[0_u32; 64]; 3];
    let mut written = [[false; 64]; 3];
    for ((src, from), (dst, to), len) in pairs {
        for byte in 0..*len {
            touched[*src][from + byte] += 1;
            touched[*dst][to + byte] += 1;
            written[*dst][to + byte] = true;
        }
    }
    (0..3).all(|which| (0..64).all(|byte| !written[which][byte] || touched[which][byte] == 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn batch_overlap_check_matches_bytewise_model(
        pairs in proptest::collection::vec(((0_usize..3, 0_usize..52), (0_usize..3, 0_usize..52), 0_usize..12), 0..6)
    ) {
        let buffers = [buffer(64), buffer(64), buffer(64)];
        let slice = |(which, at): Side, len: usize| -> RawBuffer { buffers[which].slice(at..at + len).unwrap() };
        let operands: Vec<_> = pairs.iter().map(|(src, dst, len)| (slice(*src, *len), slice(*dst, *len))).collect();
        let outcome = Operation::CopyBatch { pairs: &operands }.validate().map_err(|error| error.kind());
        prop_assert_eq!(outcome, if is_apart(&pairs) { Ok(()) } else { Err(ErrorKind::Overlap) });
    }

    #[test]
    fn slice_overlap_matches_bytewise_model(a in 0_usize..30, b in 0_usize..30, n in 0_usize..9, m in 0_usize..9) {
        let buffer = buffer(64);
        let common = (a..a + n).any(|byte| (b..b + m).contains(&byte));
        let (a, b) = (buffer.slice(a..a + n).unwrap(), buffer.slice(b..b + m).unwrap());
        prop_assert_eq!(a.overlaps(&b), common);
        prop_assert_eq!(b.overlaps(&a), common);
    }
}
