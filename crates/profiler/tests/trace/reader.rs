//! What the library reads of its own traces.

use transload_core::ErrorKind;
use transload_profiler::{Argument, Slice, TraceContents, TraceFormat, TraceOptions};

use super::{example, packets, slice, written};

#[test]
fn trace_is_read_back_up_to_any_cut() {
    let (bytes, summary) =
        written(TraceFormat::Perfetto, TraceOptions::new(), |trace| example(trace).unwrap());
    let whole = TraceContents::read(&bytes[..]).unwrap();
    let read = whole.summary.unwrap();
    assert_eq!((whole.slices, read.slices, read.slices_not_drawn), (4, summary.slices, 0));
    assert!(read.bytes > 0 && read.bytes < summary.bytes);
    for length in 0..bytes.len() {
        let (packets, _) = packets::read_prefix(&bytes[..length]);
        let slices = packets.iter().filter_map(|packet| packet.event.as_ref()).filter(|it| it.kind == 1);
        match TraceContents::read(&bytes[..length]) {
            Ok(read) => assert_eq!((read.slices, read.summary), (slices.count() as u64, None), "{length}"),
            Err(error) => {
                assert_eq!((packets.len(), error.kind()), (0, ErrorKind::InvalidArgument), "{error}")
            }
        }
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    let (chrome, _) = written(TraceFormat::Chrome, TraceOptions::new(), |trace| example(trace).unwrap());
    let (perfetto, _) = written(TraceFormat::Perfetto, TraceOptions::new(), |trace| example(trace).unwrap());
    // Its first packet begins with a key and its length.
    let without_the_first = &perfetto[2 + usize::from(perfetto[1])..];
    let endless = [b"\x0a".as_slice(), &[0xFF; 64]].concat();
    let long = b"\x0a\xFF\xFF\xFF\x7F too long a packet";
    for bytes in [b"".as_slice(), b"text", &chrome, without_the_first, &endless, long, b"\x0a\x02\xFF\xFF"] {
        let error = TraceContents::read(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bytes:?}");
    }
}

#[test]
fn slice_with_any_number_of_arguments_is_read_back() {
    let text = "x".repeat(4096);
    let arguments = vec![("name", Argument::Text(&text[..])); 1000];
    let (bytes, _) = written(TraceFormat::Perfetto, TraceOptions::new(), |trace| {
        let track = trace.track(None, "t").unwrap();
        trace.slice(track, &Slice { arguments: &arguments, ..slice("many", 0, 1) }).unwrap();
        trace.slice(track, &slice("none", 2, 3)).unwrap();
    });
    assert_eq!(TraceContents::read(&bytes[..]).unwrap().slices, 2);
    let cut = TraceContents::read(&bytes[..bytes.len() / 2]).unwrap();
    assert_eq!((cut.slices, cut.summary), (0, None));
}
