//! What Perfetto's own trace processor, on which its viewer is built, finds in traces.

use std::{
    env, fs,
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use transload_profiler::{TraceFormat, TraceOptions};

use super::{example, skip, written};

/// Returns the rows of each statement; `None`, with a printed reason, if there is no trace processor.
fn ask(trace: &[u8], statements: &[&str]) -> Option<Vec<Value>> {
    let Some(perfetto) = env::var_os("TRANSLOAD_PERFETTO") else {
        skip("TRANSLOAD_PERFETTO does not name a folder with Perfetto's trace processor");
        return None;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trace/processor.mjs");
    let mut command = Command::new("node");
    command.arg(script).arg(perfetto).args(statements);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut node = command.spawn().unwrap();
    node.stdin.take().unwrap().write_all(trace).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Slices by the beginning, with their row and its group; arrows between slices; complaints about the file.
const SLICES: &str = "select slice.name, ts, dur, track.name as row, parent.name as parent from slice \
                      join track on track.id = track_id left join track as parent on parent.id = track.parent_id \
                      order by ts, dur";
const FLOWS: &str = "select begin.name as begin, end.name as end, end.ts - begin.ts as after from flow \
                     join slice as begin on begin.id = slice_out join slice as end on end.id = slice_in order by after";
const COMPLAINTS: &str = "select name from stats where severity != 'info' and value > 0";

fn example_as(format: TraceFormat) -> Vec<u8> {
    written(format, TraceOptions::new(), |trace| example(trace).unwrap()).0
}

#[test]
fn trace_processor_finds_what_the_example_has() {
    let values = "select name, unit, ts, value from counter join counter_track as track on track.id = track_id \
                  order by name";
    let arguments = "select key, display_value as value from slice join args using (arg_set_id) \
                     where ts = 2000 and key in ('debug.method', 'debug.ratio') order by key";
    let statements = [COMPLAINTS, SLICES, FLOWS, values, arguments];
    let Some(mut found) = ask(&example_as(TraceFormat::Perfetto), &statements) else { return };
    let summary = found[1].as_array_mut().and_then(Vec::pop).unwrap();
    assert_eq!((&summary["row"], &summary["dur"]), (&json!("trace"), &json!(0)));
    let row = |name, (ts, dur), row, parent: Option<&str>| json!({ "name": name, "ts": ts, "dur": dur, "row": row, "parent": parent });
    let (gpu, stream) = (Some("gpu 0"), "stream 3 (Normal)");
    let slices = json!([
        row("submit", (0, 1_999), "host", None),
        row("copy", (2_000, 2_000), stream, gpu),
        row("inner", (2_500, 0), stream, gpu),
        row("copy", (3_000, 2_000), "stream 3 (Normal) (2)", gpu),
    ]);
    let arrow = |begin, after| json!({ "begin": begin, "end": "copy", "after": after });
    let value = |index: usize, unit| json!({ "name": format!("counter {index}"), "unit": unit, "ts": 5, "value": index as f64 + 0.5 });
    let argument = |key, value| json!({ "key": key, "value": value });
    let expected = [
        json!([]),
        slices,
        json!([arrow("copy", 1_000), arrow("submit", 2_000)]),
        json!([value(0, "count"), value(1, "bytes"), value(2, "ns"), value(3, "B/s")]),
        json!([argument("debug.method", "DirectCopy"), argument("debug.ratio", "-0.25")]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn trace_processor_finds_slices_and_arrows_of_chromes_format() {
    let slices = "select name, ts, dur from slice where dur > 0 order by ts, dur";
    let Some(found) = ask(&example_as(TraceFormat::Chrome), &[COMPLAINTS, slices, FLOWS]) else { return };
    let slice = |name, ts, dur| json!({ "name": name, "ts": ts, "dur": dur });
    let arrow = |begin, after| json!({ "begin": begin, "end": "copy", "after": after });
    let slices = [slice("submit", 0, 1_999), slice("copy", 2_000, 2_000), slice("copy", 3_000, 2_000)];
    let arrows = [arrow("copy", 1_000), arrow("submit", 2_000)];
    assert_eq!(found, [json!([]), json!(slices), json!(arrows)]);
}

#[test]
fn trace_processor_opens_a_file_that_is_cut() {
    let whole = example_as(TraceFormat::Perfetto);
    let count = "select count(*) as slices from slice";
    let Some(found) = ask(&whole[..whole.len() * 2 / 3], &[count]) else { return };
    assert!(found[0][0]["slices"].as_u64().is_some_and(|slices| slices > 0), "{found:?}");
}

/// Traces recorded on GPUs: no complaint, no arrow back in time, and bytes in every copy.
#[test]
fn trace_processor_has_no_complaint_about_recorded_traces() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/traces");
    let traces: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    let traces: Vec<_> =
        traces.iter().filter(|file| file.extension().is_some_and(|name| name == "pftrace")).collect();
    assert!(!traces.is_empty());
    let back = "select count(*) as n from flow join slice as begin on begin.id = slice_out \
                join slice as end on end.id = slice_in where end.ts < begin.ts";
    let copies = "select count(*) as n from slice where name like '%copy%'";
    for trace in traces {
        let Some(found) = ask(&fs::read(trace).unwrap(), &[COMPLAINTS, back, copies]) else { return };
        assert_eq!((&found[0], &found[1][0]["n"]), (&json!([]), &json!(0)), "{}", trace.display());
        assert!(found[2][0]["n"].as_u64().is_some_and(|copies| copies > 0), "{}", trace.display());
    }
}
