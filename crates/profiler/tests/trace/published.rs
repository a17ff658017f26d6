//! Perfetto's format: exactly the packets that are expected, by this program's reader and by the types of the published
//! schema, if Python has them.

use std::{fmt::Write, process::Command};

use transload_profiler::{TraceFormat, TraceOptions};

use super::{
    example,
    packets::{self, Packet},
    skip, written,
};

/// Packets as text.
fn listing(packets: &[Packet]) -> String {
    let mut text = String::new();
    for packet in packets {
        write!(text, "{} {}", packet.sequence, packet.flags).unwrap();
        if let Some(row) = &packet.row {
            let (unit, unit_name) = row.counter.clone().unwrap_or((9, String::new()));
            write!(text, " track {} {} '{}'", row.id, row.parent, row.name).unwrap();
            write!(text, " {unit} '{unit_name}' {} {} {}", row.ordering, row.rank, row.merge).unwrap();
        }
        if let Some(event) = &packet.event {
            let at = packet.timestamp.unwrap();
            write!(
                text,
                " event {at} {} {} '{}'",
                event.kind,
                event.row,
                event.name.as_deref().unwrap_or("")
            )
            .unwrap();
            write!(text, " {} {}", event.value.unwrap_or(-1.0), event.flows.iter().sum::<u64>()).unwrap();
            for (name, value) in &event.arguments {
                write!(text, " {name}={value}").unwrap();
            }
        }
        text.push('\n');
    }
    text
}

const EXPECTED: &str = "\
1 1 track 1 0 'trace' 9 '' 3 0 2
1 0 track 2 0 'host' 9 '' 3 64 2
1 0 track 3 0 'gpu 0' 9 '' 3 128 2
1 0 track 4 3 'stream 3 (Normal)' 9 '' 3 192 2
1 0 track 5 3 'counter 0' 2 '' 0 256 2
1 0 event 5 4 5 '' 0.5 0
1 0 track 6 3 'counter 1' 3 '' 0 320 2
1 0 event 5 4 6 '' 1.5 0
1 0 track 7 3 'counter 2' 1 '' 0 384 2
1 0 event 5 4 7 '' 2.5 0
1 0 track 8 3 'counter 3' 0 'B/s' 0 448 2
1 0 event 5 4 8 '' 3.5 0
1 0 event 0 1 2 'submit' -1 18446744073709551615
1 0 event 1999 2 2 '' -1 0
1 0 event 2000 1 4 'copy' -1 18446744073709551615 bytes=18446744073709551615 ratio=-0.25 method=DirectCopy
1 0 event 4000 2 4 '' -1 0
1 0 event 2500 1 4 'inner' -1 0 bytes=18446744073709551615
1 0 event 2500 2 4 '' -1 0
1 0 track 9 3 'stream 3 (Normal) (2)' 9 '' 3 193 2
1 0 event 3000 1 9 'copy' -1 18446744073709551615 bytes=18446744073709551615 ratio=-0.25 method=DirectCopy
1 0 event 5000 2 9 '' -1 0
";

fn bytes_and_listing() -> (Vec<u8>, String) {
    let (bytes, summary) =
        written(TraceFormat::Perfetto, TraceOptions::new(), |trace| example(trace).unwrap());
    let packets = packets::read(&bytes).unwrap().0;
    let end = &packets[packets.len() - 1];
    let before = end.event.as_ref().unwrap().arguments[5].1.parse::<u64>().unwrap();
    assert!(before < summary.bytes);
    let expected = format!(
        "{EXPECTED}1 0 event 5000 3 1 '4 slices, 0 not drawn, 0 texts cut, 0 records lost, 0 unfinished, {before} bytes' -1 0 slices=4 slices not \
         drawn=0 texts cut=0 records lost=0 unfinished=0 bytes before={before}\n"
    );
    assert_eq!(listing(&packets), expected);
    (bytes, expected)
}

#[test]
fn perfetto_example_has_exactly_these_packets() {
    bytes_and_listing();
}

/// Prints the same text from the published schema's types, and fails on any field that they do not know.
const SCRIPT: &str = r#"
import sys
try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
    from google.protobuf.unknown_fields import UnknownFieldSet
except ImportError as error:
    print(error)
    sys.exit(77)
trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in (value if hasattr(value, "add") else [value]):
                known(part)
known(trace)
number = lambda value: str(int(value)) if value == int(value) else str(value)
for p in trace.packet:
    line = f"{p.trusted_packet_sequence_id} {p.sequence_flags}"
    if p.HasField("track_descriptor"):
        t = p.track_descriptor
        unit = t.counter.unit if t.HasField("counter") else 9
        line += f" track {t.uuid} {t.parent_uuid} '{t.name}' {unit} '{t.counter.unit_name}'"
        line += f" {t.child_ordering} {t.sibling_order_rank} {t.sibling_merge_behavior}"
    if p.HasField("track_event"):
        e = p.track_event
        value = e.double_counter_value if e.HasField("double_counter_value") else -1
        line += f" event {p.timestamp} {e.type} {e.track_uuid} '{e.name}' {number(value)} {sum(e.flow_ids)}"
        for a in e.debug_annotations:
            line += f" {a.name}={getattr(a, a.WhichOneof('value'))}"
    print(line)
"#;

#[test]
fn published_schema_reads_the_same_packets() {
    let (bytes, expected) = bytes_and_listing();
    let file = std::env::temp_dir().join(format!("transload-trace-{}", std::process::id()));
    std::fs::write(&file, bytes).unwrap();
    // Another interpreter than the default one can be named, such as that of a virtual environment.
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = Command::new(&python).args(["-c", SCRIPT]).arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let output = match output {
        Ok(output) if output.status.code() != Some(77) => output,
        Ok(output) => return skip(&String::from_utf8_lossy(&output.stdout)),
        Err(error) => return skip(&format!("{python}: {error}")),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n"), expected);
}
