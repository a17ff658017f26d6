//! What exceeds a limit is counted, and the trace says so.

use transload_profiler::{TraceFormat, TraceOptions};

use super::{packets, slice, written};

const SLICES: &str = "t: slices not drawn, total";
const TIME: &str = "t: time of slices not drawn, total";

/// A track of which ten slices are drawn, and `count` more of which each takes 4 µs of 10 µs.
fn above_limit(count: u64) -> packets::Trace {
    let (bytes, summary) = written(TraceFormat::Perfetto, TraceOptions::new().slices(10), |trace| {
        let track = trace.track(None, "t").unwrap();
        for i in 0..10 + count {
            trace.slice(track, &slice("a", i * 10_000, i * 10_000 + 4_000)).unwrap();
        }
    });
    assert_eq!((summary.slices, summary.slices_not_drawn), (10, count));
    let trace = packets::read(&bytes).unwrap();
    assert_eq!(trace.drawn().len(), 10);
    trace
}

#[test]
fn slices_above_the_limit_become_counters() {
    let trace = above_limit(5_000);
    let (slices, time) = (trace.points(SLICES), trace.points(TIME));
    assert_eq!(slices[0], (100_000, 0.0));
    assert_eq!(slices[slices.len() - 1], (50_094_000, 5_000.0));
    assert_eq!(time[time.len() - 1].1, 5_000.0 * 4_000.0);
    // 50 ms are at most six points of 10 ms, besides the first and the last.
    assert!((6..=8).contains(&slices.len()), "{slices:?}");
    assert!(slices.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 < pair[1].1));
    assert_eq!(trace.row(SLICES).counter, Some((2, String::new())));
    assert_eq!(trace.row(TIME).counter, Some((1, String::new())));
    let (_, end) = trace.events().last().unwrap();
    assert!(end.name.as_deref().unwrap().starts_with("10 slices, 5000 not drawn, 0 texts cut, "));
    let counted = ("slices not drawn".to_owned(), "5000".to_owned());
    assert!(end.arguments.contains(&counted));
}

#[test]
fn trace_of_any_length_has_a_bounded_number_of_points() {
    // 100 000 slices of a second each: without longer intervals 100 000 points.
    let (bytes, _) = written(TraceFormat::Perfetto, TraceOptions::new().slices(0), |trace| {
        let track = trace.track(None, "t").unwrap();
        for i in 0..100_000_u64 {
            trace.slice(track, &slice("a", i * 1_000_000_000, (i + 1) * 1_000_000_000)).unwrap();
        }
    });
    let points = packets::read(&bytes).unwrap().points(SLICES);
    assert!((10_000..60_000).contains(&points.len()), "{}", points.len());
    assert_eq!(points[points.len() - 1].1, 100_000.0);
}

#[test]
fn late_and_long_slices_above_the_limit_are_counted() {
    let latest = i64::MAX as u64;
    let (bytes, summary) = written(TraceFormat::Perfetto, TraceOptions::new().slices(0), |trace| {
        let track = trace.track(None, "t").unwrap();
        for (begin, end) in [(50, 90), (0, 10), (0, latest), (0, latest), (0, latest), (3, 3)] {
            trace.slice(track, &slice("a", begin, end)).unwrap();
        }
    });
    assert_eq!(summary.slices_not_drawn, 6);
    let trace = packets::read(&bytes).unwrap();
    assert_eq!(trace.points(SLICES).last(), Some(&(latest, 6.0)));
    assert_eq!(trace.points(TIME).last(), Some(&(latest, u64::MAX as f64)));
}

#[test]
fn slices_that_overlap_sixty_four_others_are_counted() {
    let (bytes, summary) = written(TraceFormat::Perfetto, TraceOptions::new(), |trace| {
        let track = trace.track(None, "t").unwrap();
        (0..100).for_each(|i| trace.slice(track, &slice("a", i, i + 1000)).unwrap());
    });
    assert_eq!((summary.slices, summary.slices_not_drawn), (64, 36));
    let trace = packets::read(&bytes).unwrap();
    assert_eq!(trace.row("t (64)").parent, 0);
    assert_eq!(trace.points(SLICES).last(), Some(&(1099, 36.0)));
}
