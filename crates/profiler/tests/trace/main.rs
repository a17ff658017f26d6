//! Tests of what traces promise, read back by a reader that knows the published field numbers only.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod chrome;
mod cut_off;
mod failing;
mod fields;
mod limits;
mod packets;
mod processor;
mod published;
mod reader;
mod rows;
mod texts;

use transload_profiler::{
    Argument, Flow, Slice, TraceFormat, TraceOptions, TraceSummary, TraceWriter, TrackId, Unit,
};

/// A slice without flow and arguments.
fn slice(name: &str, begin: u64, end: u64) -> Slice<'_> {
    Slice { name, begin, end, flow: None, arguments: &[] }
}

/// Writes a trace into memory.
fn written(
    format: TraceFormat,
    options: TraceOptions,
    write: impl FnOnce(&mut TraceWriter<&mut Vec<u8>>),
) -> (Vec<u8>, TraceSummary) {
    let mut bytes = Vec::new();
    let mut trace = TraceWriter::new(&mut bytes, format, options).unwrap();
    write(&mut trace);
    let summary = trace.finish().unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    (bytes, summary)
}

/// Writes slices of one track "t".
fn one_track(slices: &[Slice<'_>]) -> packets::Trace {
    let (bytes, _) = written(TraceFormat::Perfetto, TraceOptions::new(), |trace| {
        let track = trace.track(None, "t").unwrap();
        slices.iter().for_each(|slice| trace.slice(track, slice).unwrap());
    });
    packets::read(&bytes).unwrap()
}

/// A trace with everything: groups, counters of each unit, nested and overlapping slices, flows and arguments.
fn example<W: std::io::Write>(trace: &mut TraceWriter<W>) -> transload_core::Result<()> {
    let host = trace.track(None, "host")?;
    let device = trace.track(None, "gpu 0")?;
    let stream = trace.track(Some(device), "stream 3 (Normal)")?;
    let units = [Unit::Count, Unit::Bytes, Unit::Nanoseconds, Unit::Other("B/s")];
    for (index, unit) in units.into_iter().enumerate() {
        let counter = trace.counter(Some(device), &format!("counter {index}"), unit)?;
        trace.value(counter, 5, index as f64 + 0.5)?;
    }
    chunks(trace, host, stream)
}

fn chunks<W: std::io::Write>(
    trace: &mut TraceWriter<W>,
    host: TrackId,
    stream: TrackId,
) -> transload_core::Result<()> {
    trace.slice(host, &Slice { flow: Some(Flow::Start(u64::MAX)), ..slice("submit", 0, 1_999) })?;
    let arguments = [
        ("bytes", Argument::U64(u64::MAX)),
        ("ratio", Argument::F64(-0.25)),
        ("method", Argument::Text("DirectCopy")),
    ];
    let copy =
        Slice { flow: Some(Flow::Step(u64::MAX)), arguments: &arguments, ..slice("copy", 2_000, 4_000) };
    trace.slice(stream, &copy)?;
    trace.slice(stream, &Slice { arguments: &arguments[..1], ..slice("inner", 2_500, 2_500) })?;
    trace.slice(stream, &Slice { begin: 3_000, end: 5_000, ..copy })
}

/// Prints why a test of what others make of a trace is left out.
fn skip(reason: &str) {
    assert!(std::env::var_os("TRANSLOAD_TEST_NEEDS_PERFETTO").is_none(), "{reason}");
    println!("skipped: {reason}");
}
