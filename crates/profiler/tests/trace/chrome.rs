//! Chrome's format, read back by a JSON parser.

use serde_json::{Value, json};
use transload_profiler::{Argument, Slice, TraceFormat, TraceOptions, Unit};

use super::{example, packets::Drawn, slice, written};

pub(crate) fn read(bytes: &[u8]) -> serde_json::Result<Vec<Value>> {
    serde_json::from_slice(bytes)
}

pub(crate) fn of_phase<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["ph"] == phase).collect()
}

/// The slices, after checking that those of a row nest or do not overlap.
pub(crate) fn drawn(events: &[Value]) -> Vec<Drawn> {
    let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
    let drawn: Vec<_> = of_phase(events, "X")
        .into_iter()
        .map(|event| {
            let (begin, length) = (nanoseconds(&event["ts"]), nanoseconds(&event["dur"]));
            let name = event["name"].as_str().unwrap().to_owned();
            Drawn { name, begin, end: begin + length, row: event["tid"].to_string() }
        })
        .collect();
    for (index, a) in drawn.iter().enumerate() {
        for b in drawn[index + 1..].iter().filter(|b| b.row == a.row) {
            let crossing = |a: &Drawn, b: &Drawn| a.begin < b.begin && b.begin < a.end && a.end < b.end;
            assert!(!crossing(a, b) && !crossing(b, a), "{a:?} {b:?}");
        }
    }
    drawn
}

#[test]
fn chrome_example_has_all_events() {
    let (bytes, summary) = written(TraceFormat::Chrome, TraceOptions::new(), |trace| example(trace).unwrap());
    let events = read(&bytes).unwrap();
    let slices = of_phase(&events, "X");
    assert_eq!(slices.len() as u64, summary.slices);
    // The host is row 2 and the device row 3; the stream is row 4 beneath, counters 5 to 8, the second lane 9.
    let submit = json!({
        "ph": "X", "pid": 2, "tid": 2, "ts": 0.0, "dur": 1.999, "name": "submit",
        "bind_id": "0xffffffffffffffff", "flow_out": true, "args": {},
    });
    assert_eq!(*slices[0], submit);
    let copy = json!({
        "ph": "X", "pid": 3, "tid": 4, "ts": 2.0, "dur": 2.0, "name": "copy",
        "bind_id": "0xffffffffffffffff", "flow_in": true, "flow_out": true,
        "args": {"bytes": u64::MAX.to_string(), "ratio": -0.25, "method": "DirectCopy"},
    });
    assert_eq!(*slices[1], copy);
    assert_eq!((&slices[2]["tid"], &slices[2]["dur"]), (&json!(4), &json!(0.0)));
    assert_eq!((&slices[3]["pid"], &slices[3]["tid"]), (&json!(3), &json!(9)));
    let values: Vec<_> = of_phase(&events, "C").into_iter().map(|event| event["args"].clone()).collect();
    assert_eq!(
        values,
        [json!({"count": 0.5}), json!({"bytes": 1.5}), json!({"ns": 2.5}), json!({"B/s": 3.5})]
    );
    let names = |kind| {
        let events = of_phase(&events, "M").into_iter().filter(move |event| event["name"] == kind);
        events.map(|event| event["args"]["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names("process_name"), ["trace", "host", "gpu 0"]);
    assert_eq!(names("thread_name"), ["host", "gpu 0", "stream 3 (Normal)", "stream 3 (Normal) (2)"]);
    let end = &events[events.len() - 1];
    assert_eq!((&end["ph"], &end["args"]["slices"]), (&json!("i"), &json!(4)));
    assert!(end["name"].as_str().unwrap().starts_with("4 slices, 0 not drawn, 0 texts cut, "));
}

#[test]
fn chrome_names_deeper_levels_by_their_path() {
    let (bytes, _) = written(TraceFormat::Chrome, TraceOptions::new(), |trace| {
        let device = trace.track(None, "gpu 0").unwrap();
        let group = trace.track(Some(device), "streams").unwrap();
        let stream = trace.track(Some(group), "3").unwrap();
        trace.slice(stream, &slice("a", 0, 1)).unwrap();
        for group in [Some(device), Some(group), Some(device)] {
            let counter = trace.counter(group, "queued", Unit::Count).unwrap();
            trace.value(counter, 0, 1.0).unwrap();
        }
    });
    let events = read(&bytes).unwrap();
    let names: Vec<_> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    assert_eq!(names[2]["args"]["name"], "streams / 3");
    let counters: Vec<_> = of_phase(&events, "C").into_iter().map(|event| event["name"].clone()).collect();
    assert_eq!(counters, ["queued", "streams / queued", "queued (2)"]);
}

#[test]
fn chrome_writes_numbers_that_json_lacks_as_text() {
    let arguments = [
        ("exact", Argument::U64((1 << 53) - 1)),
        ("large", Argument::U64(1 << 53)),
        ("nan", Argument::F64(f64::NAN)),
        ("infinite", Argument::F64(f64::NEG_INFINITY)),
        ("tiny", Argument::F64(1e-300)),
    ];
    let (bytes, _) = written(TraceFormat::Chrome, TraceOptions::new(), |trace| {
        let track = trace.track(None, "t").unwrap();
        trace.slice(track, &Slice { arguments: &arguments, ..slice("a", 0, 1) }).unwrap();
    });
    let events = read(&bytes).unwrap();
    let expected = json!({
        "exact": (1_u64 << 53) - 1, "large": "9007199254740992", "nan": "NaN", "infinite": "-inf", "tiny": 1e-300,
    });
    assert_eq!(of_phase(&events, "X")[0]["args"], expected);
}
