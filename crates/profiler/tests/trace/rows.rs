//! Whatever slices arrive, those that are drawn are drawn with their own beginning and end.

use proptest::prelude::*;
use transload_core::ErrorKind;
use transload_profiler::{Slice, TraceFormat, TraceOptions, TraceWriter};

use super::{chrome, one_track, packets, slice, written};

/// Name, beginning, end and row.
fn drawn(slices: &[Slice<'_>]) -> Vec<(String, u64, u64, String)> {
    one_track(slices).drawn().into_iter().map(|d| (d.name, d.begin, d.end, d.row)).collect()
}

fn rows(slices: &[Slice<'_>]) -> Vec<String> {
    drawn(slices).into_iter().map(|slice| slice.3).collect()
}

#[test]
fn nested_slices_share_a_row_in_any_order() {
    assert_eq!(rows(&[slice("a", 0, 9), slice("b", 0, 5), slice("c", 5, 9)]), ["t", "t", "t"]);
    assert_eq!(rows(&[slice("a", 5, 9), slice("b", 1, 2), slice("c", 0, 9)]), ["t", "t", "t"]);
}

#[test]
fn adjacent_slices_share_a_row_if_in_order() {
    assert_eq!(rows(&[slice("a", 0, 5), slice("b", 5, 9)]), ["t", "t"]);
    assert_eq!(rows(&[slice("a", 5, 9), slice("b", 0, 5)]), ["t", "t (2)"]);
    assert_eq!(rows(&[slice("a", 5, 9), slice("b", 0, 4)]), ["t", "t"]);
}

#[test]
fn overlapping_slices_have_rows_of_their_own() {
    let expected = [
        ("a".to_owned(), 0, 5, "t".to_owned()),
        ("b".to_owned(), 3, 8, "t (2)".to_owned()),
        ("c".to_owned(), 4, 9, "t (3)".to_owned()),
        ("d".to_owned(), 5, 7, "t".to_owned()),
    ];
    assert_eq!(drawn(&[slice("a", 0, 5), slice("b", 3, 8), slice("c", 4, 9), slice("d", 5, 7)]), expected);
}

#[test]
fn outer_slice_after_inner_with_same_beginning_has_a_row() {
    assert_eq!(rows(&[slice("inner", 3, 4), slice("outer", 3, 9)]), ["t", "t (2)"]);
}

#[test]
fn overflow_row_is_next_to_its_own_in_the_group() {
    let (bytes, _) = written(TraceFormat::Perfetto, TraceOptions::new(), |trace| {
        let group = trace.track(None, "group").unwrap();
        let first = trace.track(Some(group), "first").unwrap();
        trace.track(Some(group), "second").unwrap();
        trace.slice(first, &slice("a", 0, 5)).unwrap();
        trace.slice(first, &slice("b", 3, 8)).unwrap();
    });
    let trace = packets::read(&bytes).unwrap();
    let (first, overflow, second) = (trace.row("first"), trace.row("first (2)"), trace.row("second"));
    assert_eq!((overflow.parent, trace.row("group").ordering), (first.parent, 3));
    assert!(first.rank < overflow.rank && overflow.rank < second.rank);
}

#[test]
fn long_slice_keeps_its_row_while_many_are_nested() {
    let inner = (0..1000).map(|i| slice("inner", 10 * i, 10 * i + 10));
    let slices: Vec<_> = [slice("outer", 0, 10_000)].into_iter().chain(inner).collect();
    assert!(rows(&slices).iter().all(|row| row == "t"));
}

#[test]
fn slices_late_by_thirty_one_keep_their_row() {
    let in_order: Vec<_> = (0..1024).map(|i| slice("a", 10 * i, 10 * i + 5)).collect();
    let late: Vec<_> = in_order.chunks(32).flat_map(|chunk| chunk.iter().rev().copied()).collect();
    assert!(rows(&late).iter().all(|row| row == "t"));
}

#[test]
fn extreme_times_and_zero_lengths_are_exact() {
    const LATEST: u64 = i64::MAX as u64;
    let slices = [slice("a", 0, 0), slice("b", 0, LATEST), slice("c", LATEST, LATEST), slice("d", 0, 0)];
    let expected = [("a", 0, 0), ("b", 0, LATEST), ("c", LATEST, LATEST), ("d", 0, 0)];
    let drawn = drawn(&slices);
    assert!(drawn.iter().map(|(name, begin, end, _)| (name.as_str(), *begin, *end)).eq(expected));
}

#[test]
fn impossible_times_are_refused_and_the_trace_goes_on() {
    for format in [TraceFormat::Perfetto, TraceFormat::Chrome] {
        let (bytes, summary) = written(format, TraceOptions::new(), |trace| {
            let track = trace.track(None, "t").unwrap();
            let kind = |result: transload_core::Result<()>| result.unwrap_err().kind();
            assert_eq!(kind(trace.slice(track, &slice("a", 5, 4))), ErrorKind::InvalidArgument);
            assert_eq!(kind(trace.slice(track, &slice("a", 5, u64::MAX))), ErrorKind::OutOfRange);
            let counter = trace.counter(None, "c", transload_profiler::Unit::Count).unwrap();
            assert_eq!(kind(trace.value(counter, u64::MAX, 1.0)), ErrorKind::OutOfRange);
            assert_eq!(kind(trace.value(counter, 1, f64::NAN)), ErrorKind::InvalidArgument);
            trace.slice(track, &slice("b", 5, 6)).unwrap();
        });
        assert_eq!((summary.slices, summary.slices_not_drawn), (1, 0));
        if format == TraceFormat::Chrome {
            chrome::read(&bytes).unwrap();
        }
    }
}

#[test]
fn rows_of_another_trace_are_refused() {
    let mut other = TraceWriter::new(Vec::new(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let (track, counter) =
        (other.track(None, "t").unwrap(), other.counter(None, "c", transload_profiler::Unit::Count).unwrap());
    written(TraceFormat::Perfetto, TraceOptions::new(), |trace| {
        // In the same places.
        trace.track(None, "t").unwrap();
        trace.counter(None, "c", transload_profiler::Unit::Count).unwrap();
        assert_eq!(trace.slice(track, &slice("a", 0, 1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(trace.track(Some(track), "a").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(trace.value(counter, 0, 1.0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

proptest! {
    /// Times of a small range, so that ends and beginnings coincide often; more slices than a lane remembers.
    #[test]
    fn slices_are_drawn_as_they_were_passed(times in prop::collection::vec((0..60_u64, 0..12_u64), 0..150)) {
        let names: Vec<_> = (0..times.len()).map(|i| format!("{i:03}")).collect();
        let slices: Vec<_> = names.iter().zip(&times).map(|(name, (begin, length))| {
            slice(name, *begin, begin + length)
        }).collect();
        for format in [TraceFormat::Perfetto, TraceFormat::Chrome] {
            let (bytes, summary) = written(format, TraceOptions::new(), |trace| {
                let track = trace.track(None, "t").unwrap();
                slices.iter().for_each(|slice| trace.slice(track, slice).unwrap());
            });
            let drawn = match format {
                TraceFormat::Perfetto => packets::read(&bytes).unwrap().drawn(),
                _ => chrome::drawn(&chrome::read(&bytes).unwrap()),
            };
            prop_assert_eq!(summary.slices + summary.slices_not_drawn, slices.len() as u64);
            prop_assert_eq!(summary.slices, drawn.len() as u64);
            for drawn in &drawn {
                let passed = &slices[drawn.name.parse::<usize>().unwrap()];
                prop_assert_eq!((drawn.begin, drawn.end), (passed.begin, passed.end));
            }
        }
    }
}
