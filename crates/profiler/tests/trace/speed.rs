//! A million slices a second.

use std::time::Instant;

use transload_profiler::{Argument, Flow, Slice, TraceFormat, TraceOptions, TraceWriter};

/// Prints the time of a slice with two arguments and a flow; checks it in builds with optimisation.
#[test]
#[ignore = "measures"]
fn million_slices_take_at_most_a_second() {
    for format in [TraceFormat::Perfetto, TraceFormat::Chrome] {
        let mut trace = TraceWriter::new(std::io::sink(), format, TraceOptions::new()).unwrap();
        let stream = trace.track(None, "stream").unwrap();
        let arguments = [("bytes", Argument::U64(4096)), ("method", Argument::Text("DirectCopy"))];
        let start = Instant::now();
        for i in 0..1_000_000_u64 {
            let (begin, flow) = (1_000_000_000_000 + i * 1000, Some(Flow::Step(i)));
            let slice = Slice { name: "copy", begin, end: begin + 900, flow, arguments: &arguments };
            trace.slice(stream, &slice).unwrap();
        }
        let summary = trace.finish().unwrap();
        let elapsed = start.elapsed();
        println!(
            "{format:?}: {} ns and {} bytes a slice",
            elapsed.as_nanos() / 1_000_000,
            summary.bytes / 1_000_000
        );
        assert!(cfg!(debug_assertions) || elapsed.as_secs_f64() < 1.0);
    }
}
