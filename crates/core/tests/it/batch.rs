//! A batch is refused exactly if one of its destinations overlaps another of its ranges.

use proptest::prelude::*;
use transload_core::{ErrorKind, Operation, RawBuffer, Timing, Turns, submit, try_submit};

use crate::mock::{MockQueue, buffer};

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
        // Odd units, so that a bitmap of the bytes would be long.
        for unit in [1, 4097] {
            let buffers = [buffer(64 * unit), buffer(64 * unit), buffer(64 * unit)];
            let slice = |(which, at): Side, len: usize| buffers[which].slice(at * unit..(at + len) * unit).unwrap();
            let operands: Vec<_> = pairs.iter().map(|(src, dst, len)| (slice(*src, *len), slice(*dst, *len))).collect();
            let outcome = Operation::CopyBatch { pairs: &operands }.validate().map_err(|error| error.kind());
            prop_assert_eq!(outcome, if is_apart(&pairs) { Ok(()) } else { Err(ErrorKind::Overlap) });
        }
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

#[test]
fn refused_pair_of_a_batch_is_named() {
    // Few allocations, and more than have a bitmap.
    for count in [4, 40] {
        let buffers: Vec<RawBuffer> = (0..count).map(|_| buffer(64)).collect();
        let mut pairs: Vec<_> = buffers
            .chunks_exact(2)
            .flat_map(|both| {
                [0, 16].map(|at| (both[0].slice(at..at + 16).unwrap(), both[1].slice(at..at + 16).unwrap()))
            })
            .collect();
        Operation::CopyBatch { pairs: &pairs }.validate().unwrap();
        let refused =
            |pairs: &[(RawBuffer, RawBuffer)]| Operation::CopyBatch { pairs }.validate().unwrap_err();
        let last = pairs.len() - 1;
        pairs[last].1 = buffers[count - 1].slice(15..31).unwrap();
        assert_eq!(refused(&pairs).kind(), ErrorKind::Overlap);
        assert!(
            refused(&pairs).to_string().starts_with(&format!("pair {last} of the batch: ")),
            "{}",
            refused(&pairs)
        );
        pairs[1].0 = buffers[0].slice(0..3).unwrap();
        assert_eq!(refused(&pairs).kind(), ErrorKind::InvalidArgument);
        assert!(refused(&pairs).to_string().starts_with("pair 1 of the batch: source has 3 bytes"));
    }
}

#[test]
fn batch_over_an_open_view_is_busy() {
    const COUNT: usize = 600;
    // Ranges of a bitmap, and those that are ordered by where they begin.
    for (bytes, distance) in [(2, 4), (4099, 8197)] {
        let buffer = || buffer(distance * COUNT);
        let (from, to, queue) = (buffer(), buffer(), MockQueue::new());
        let piece =
            |of: &RawBuffer, index: usize| of.slice(index * distance..index * distance + bytes).unwrap();
        let pairs: Vec<_> =
            (0..COUNT).map(|index| (piece(&from, index), piece(&to, COUNT - 1 - index))).collect();
        let batch = || submit(&queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off);
        for index in [0, 130, COUNT - 1] {
            let held = piece(&from, index);
            let view = held.write().unwrap();
            assert_eq!(batch().unwrap_err().kind(), ErrorKind::Busy, "piece {index}");
            drop(view);
            // What is between the pieces is not claimed.
            let gap = index * distance + bytes..(index + 1) * distance;
            let between = from.slice(gap.clone()).unwrap();
            let view = between.write().unwrap();
            let fence = batch().unwrap();
            drop(view);
            assert!(to.slice(gap).unwrap().try_write().is_ok());
            assert!(piece(&to, index).try_write().is_err(), "it is in flight");
            queue.complete(fence.point());
            assert!(piece(&to, index).try_write().is_ok());
        }
    }
}

#[test]
fn pair_without_bytes_within_another_hides_no_use() {
    let (queue, one) = (MockQueue::new(), buffer(3000));
    let pair = |src: std::ops::Range<usize>| {
        (one.slice(src.clone()).unwrap(), one.slice(src.start + 1000..src.end + 1000).unwrap())
    };
    // A search among many ranges begins in the middle, next to the longest.
    let short = |from: usize| (0..8).map(move |index| from + 10 * index..from + 10 * index + 5);
    let mut pairs: Vec<_> = short(0).chain(std::iter::once(100..200)).chain(short(300)).map(pair).collect();
    let piece = |range: std::ops::Range<usize>| one.slice(range).unwrap();
    pairs.extend([(piece(150..150), piece(150..150)), (piece(160..170), piece(2500..2510))]);
    let batch = Operation::CopyBatch { pairs: &pairs };
    try_submit(&queue, &batch, Timing::Off, &Turns::default()).unwrap();
    let is_busy = |range: std::ops::Range<usize>| {
        one.slice(range).unwrap().try_write().is_err_and(|error| error.kind() == ErrorKind::Busy)
    };
    assert!(one.slice(1101..1102).unwrap().try_read().is_err(), "it is written");
    let touched: Vec<_> = pairs
        .iter()
        .flat_map(|(src, dst)| [src, dst].map(|of| of.offset()..of.offset() + of.len()))
        .collect();
    for begin in (0..3000).step_by(5) {
        let range = begin..begin + 5;
        let expected = touched.iter().any(|used| used.start.max(range.start) < used.end.min(range.end));
        assert_eq!(is_busy(range), expected, "{begin}");
    }
    queue.complete(1);
}
