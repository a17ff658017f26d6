//! Ranges that exceed a buffer, are reversed or overflow are typed errors.

use std::ops::Bound;

use transload_core::{ErrorKind, Operation, Pattern, Pitched};

use crate::mock::buffer;

#[test]
fn slices_share_the_allocation_or_are_out_of_range() {
    let whole = buffer(100);
    for (slice, offset, len) in [
        (whole.slice(..), 0, 100),
        (whole.slice(100..), 100, 0),
        (whole.slice(99..=99), 99, 1),
        (whole.slice((Bound::Excluded(9), Bound::Unbounded)), 10, 90),
    ] {
        let slice = slice.unwrap();
        assert_eq!((slice.offset(), slice.len(), slice.id()), (offset, len, whole.id()));
    }
    let inner = whole.slice(40..60).unwrap();
    assert_eq!(inner.slice(5..10).unwrap().offset(), 45);
    #[allow(clippy::reversed_empty_ranges)]
    let refused = [
        whole.slice(0..101),
        whole.slice(101..),
        whole.slice(60..40),
        whole.slice(0..=usize::MAX),
        whole.slice((Bound::Excluded(usize::MAX), Bound::Unbounded)),
        whole.slice(usize::MAX..),
        inner.slice(0..21),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
        assert!(error.to_string().contains("buffer of "), "{error}");
    }
}

#[test]
fn refused_slice_names_its_range_as_written() {
    let whole = buffer(100);
    #[allow(clippy::reversed_empty_ranges)]
    let refused = [
        (whole.slice(5..3), "bytes 5..3 are"),
        (whole.slice(..=100), "bytes ..=100 are"),
        (whole.slice(101..), "bytes 101.. are"),
        (whole.slice((Bound::Excluded(100), Bound::Excluded(101))), "bytes (after 100)..101 are"),
    ];
    for (refused, text) in refused {
        let error = refused.unwrap_err().to_string();
        assert_eq!(error, format!("{text} not within this buffer of 100 bytes; use a range in 0..100"));
    }
}

#[test]
fn rows_must_fit_both_sides_without_overflow() {
    let (src, dst) = (buffer(100), buffer(50));
    let check = |width, height, src_pitch, dst_pitch| {
        let rows = Pitched::new(width, height, src_pitch, dst_pitch);
        Operation::CopyPitched { src: &src, dst: &dst, rows }.validate().map_err(|error| error.kind())
    };
    // The last row needs no room for the rest of its pitch.
    assert_eq!(check(10, 5, 22, 10), Ok(()));
    assert_eq!(check(10, 5, 20, 10), Ok(()));
    for (width, height, src_pitch, dst_pitch) in [
        (10, 5, 23, 10),
        (10, 6, 10, 10),
        (10, 5, 9, 10),
        (10, 5, 10, 9),
        (0, 5, 10, 10),
        (10, 0, 10, 10),
        (usize::MAX, 1, usize::MAX, usize::MAX),
        (1, usize::MAX, usize::MAX, 1),
        (8, 3, usize::MAX / 2 + 1, 8),
        (2, 2, usize::MAX, 2),
    ] {
        assert_eq!(
            check(width, height, src_pitch, dst_pitch),
            Err(ErrorKind::OutOfRange),
            "{width} × {height}"
        );
    }
}

#[test]
fn planes_must_fit_both_sides_and_stay_apart() {
    let (src, dst) = (buffer(100), buffer(50));
    // 4 bytes twice in 14 of the source and 10 of the destination.
    let check = |planes, src_plane, dst_plane| {
        let rows = Pitched::new(4, 2, 10, 6).planes(planes, src_plane, dst_plane);
        Operation::CopyPitched { src: &src, dst: &dst, rows }.validate().map_err(|error| error.kind())
    };
    assert_eq!(check(5, 21, 10), Ok(()));
    assert_eq!(check(3, 0, 20), Ok(()));
    assert_eq!(check(1, 0, 0), Ok(()));
    for (planes, src_plane, dst_plane) in
        [(5, 22, 10), (6, 10, 10), (5, 21, 11), (0, 0, 10), (2, usize::MAX, 10), (usize::MAX, 0, usize::MAX)]
    {
        assert_eq!(check(planes, src_plane, dst_plane), Err(ErrorKind::OutOfRange), "{planes} planes");
    }
    assert_eq!(check(2, 20, 9), Err(ErrorKind::Overlap));
    assert_eq!(check(2, 20, 0), Err(ErrorKind::Overlap));
}

#[test]
fn copies_of_two_lengths_and_broken_patterns_are_refused() {
    let (a, b) = (buffer(100), buffer(99));
    let kind = |operation: Operation<'_>| operation.validate().unwrap_err().kind();
    assert_eq!(kind(Operation::Copy { src: &a, dst: &b }), ErrorKind::InvalidArgument);
    assert_eq!(kind(Operation::Copy { src: &a, dst: &a }), ErrorKind::Overlap);
    assert_eq!(kind(Operation::Fill { dst: &b, pattern: Pattern::U16(0) }), ErrorKind::InvalidArgument);
    assert_eq!(kind(Operation::Fill { dst: &b, pattern: Pattern::U32(0) }), ErrorKind::InvalidArgument);
    let touching = [a.slice(..60).unwrap(), a.slice(40..).unwrap()];
    let error = Operation::Copy { src: &touching[0], dst: &touching[1] }.validate().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overlap);
    assert!(error.to_string().contains("0..60") && error.to_string().contains("40..100"), "{error}");
}

#[test]
fn only_adjacent_slices_of_one_allocation_join() {
    let (whole, other) = (buffer(100), buffer(100));
    let part = |range: std::ops::Range<usize>| whole.slice(range).unwrap();
    for (one, two) in [(10..30, 30..70), (30..70, 10..30)] {
        let joined = part(one).joined(&part(two)).unwrap();
        assert_eq!((joined.offset(), joined.len(), joined.id()), (10, 60, whole.id()));
    }
    for (one, two) in [(10..30, 31..70), (10..30, 29..70), (31..70, 10..30), (10..30, 10..30)] {
        assert!(part(one).joined(&part(two)).is_none());
    }
    assert!(part(0..50).joined(&other.slice(50..).unwrap()).is_none(), "another allocation");
}

#[test]
fn later_slice_of_one_allocation_extends_an_earlier_one() {
    let (whole, other) = (buffer(100), buffer(100));
    let part = |range: std::ops::Range<usize>| whole.slice(range).unwrap();
    for (next, gap) in [(30..40, 0), (35..40, 5), (30..30, 0)] {
        let extended = part(10..30).extended(&part(next.clone())).unwrap();
        assert_eq!((extended.offset(), extended.len(), extended.id()), (10, next.end - 10, whole.id()));
        assert_eq!(part(10..30).gap_to(&part(next.clone()), gap), Some(gap));
        if let Some(less) = gap.checked_sub(1) {
            assert_eq!(part(10..30).gap_to(&part(next), less), None);
        }
    }
    for next in [part(29..40), part(0..10), part(10..30), other.slice(30..40).unwrap()] {
        assert!(part(10..30).extended(&next).is_none());
        assert_eq!(part(10..30).gap_to(&next, usize::MAX), None);
    }
}
