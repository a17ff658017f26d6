//! Names and texts of any content and length are right in both formats.

use serde_json::json;
use transload_profiler::{Argument, Slice, TraceFormat, TraceOptions, Unit};

use super::{chrome, packets, slice, written};

/// The text everywhere: as the name of a group, a track, a counter, a slice and an argument, and as a value.
fn everywhere(format: TraceFormat, text: &str) -> (Vec<u8>, u64) {
    let (bytes, summary) = written(format, TraceOptions::new(), |trace| {
        let group = trace.track(None, text).unwrap();
        let track = trace.track(Some(group), text).unwrap();
        let counter = trace.counter(Some(group), text, Unit::Bytes).unwrap();
        trace.value(counter, 1, 2.0).unwrap();
        let arguments = [("n", Argument::U64(1)), (text, Argument::Text(text))];
        trace.slice(track, &Slice { arguments: &arguments, ..slice(text, 1, 2) }).unwrap();
    });
    (bytes, summary.texts_cut)
}

/// Checks that `shown` is everywhere in both formats. Returns the number of texts cut.
fn check(text: &str, shown: &str) -> u64 {
    let (bytes, cut) = everywhere(TraceFormat::Perfetto, text);
    let trace = packets::read(&bytes).unwrap();
    assert!(trace.rows().values().skip(1).all(|row| row.name == shown));
    let (_, begin) = trace.events().find(|(_, event)| event.kind == 1).unwrap();
    assert_eq!(begin.name.as_deref(), Some(shown));
    assert_eq!(begin.arguments[1], (shown.to_owned(), shown.to_owned()));
    let (bytes, _) = everywhere(TraceFormat::Chrome, text);
    let events = chrome::read(&bytes).unwrap();
    let slice = chrome::of_phase(&events, "X")[0];
    assert_eq!((&slice["name"], &slice["args"]), (&json!(shown), &json!({"n": 1, shown: shown})));
    assert_eq!(chrome::of_phase(&events, "C")[0]["name"], shown);
    let names = events.iter().filter(|event| event["args"]["name"] == shown);
    assert_eq!(names.count(), 3);
    cut
}

#[test]
fn texts_of_any_characters_are_kept() {
    let control: String = (0..0x20).map(char::from).chain(['\u{7f}', '\u{2028}', '\u{feff}']).collect();
    for text in ["say \"hi\" \\ / 'x'", "two\nlines\r\n\ttabs\0", &control, "👩‍👩‍👧 Größe 速度", "", " "]
    {
        assert_eq!(check(text, text), 0);
    }
}

#[test]
fn long_texts_are_cut_and_the_trace_says_so() {
    let longest = "x".repeat(4096);
    assert_eq!(check(&longest, &longest), 0);
    let text = format!("{longest}y");
    // Three of the slice and three of rows.
    assert_eq!(check(&text, &format!("{longest}… (cut: 4097 bytes)")), 6);
    let emoji = "👍".repeat(10 << 18);
    let kept = "👍".repeat(1024);
    check(&emoji, &format!("{kept}… (cut: {} bytes)", 10 << 20));
    let odd = format!("x{emoji}");
    check(&odd, &format!("x{}… (cut: {} bytes)", "👍".repeat(1023), (10 << 20) + 1));
}

#[test]
fn rows_of_one_cut_name_differ() {
    let name = "x".repeat(10_000);
    let (bytes, summary) = written(TraceFormat::Perfetto, TraceOptions::new().slices(2), |trace| {
        let track = trace.track(None, &name).unwrap();
        (0..3).for_each(|i| trace.slice(track, &slice("a", i, i + 5)).unwrap());
    });
    let shown = format!("{}… (cut: 10000 bytes)", &name[..4096]);
    let trace = packets::read(&bytes).unwrap();
    let names: Vec<_> = trace.rows().values().skip(1).map(|row| row.name.replace(&shown, "x")).collect();
    let expected = ["x", "x (2)", "x: slices not drawn, total", "x: time of slices not drawn, total"];
    assert_eq!((names, summary.texts_cut), (expected.map(str::to_owned).to_vec(), 1));
}
