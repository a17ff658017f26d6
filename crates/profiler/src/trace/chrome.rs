//! Chrome's format: a JSON array of events, one a line, whose end may be missing.
//!
//! It has two levels, processes and threads: a row is a thread of the process that is its root.

use std::io::Write;

use super::{
    row::{Encoder, Row},
    types::{Argument, Flow, Slice, TraceSummary, Unit},
};

/// The largest whole number that every reader keeps: those of JavaScript round larger ones.
const EXACT: u64 = (1 << 53) - 1;

pub(super) struct Chrome;

impl Encoder for Chrome {
    fn begin(&mut self, row: &Row, out: &mut Vec<u8>) {
        out.extend_from_slice(b"[\n");
        metadata(row, row.root, "process_name", &row.name, out);
    }

    fn row(&mut self, row: &Row, out: &mut Vec<u8>) {
        let sort_index = |kind: &str, out: &mut Vec<u8>| {
            write(out, format_args!(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{}", row.root, row.id));
            write(out, format_args!(",\"name\":\"{kind}\",\"args\":{{\"sort_index\":{}}}}}", row.rank));
        };
        if row.root == row.id {
            out.extend_from_slice(b",\n");
            metadata(row, row.id, "process_name", &row.name, out);
            sort_index("process_sort_index", out);
        }
        if row.unit.is_none() {
            out.extend_from_slice(b",\n");
            metadata(row, row.id, "thread_name", &row.path, out);
            sort_index("thread_sort_index", out);
        }
    }

    fn slice(&mut self, row: &Row, slice: &Slice<'_>, out: &mut Vec<u8>) {
        event(row, "X", slice.name, slice.begin, out);
        let length = slice.end - slice.begin;
        write(out, format_args!(",\"dur\":{}.{:03}", length / 1000, length % 1000));
        match slice.flow {
            Some(Flow::Start(id)) => write(out, format_args!(",\"bind_id\":\"{id:#x}\",\"flow_out\":true")),
            Some(Flow::Step(id) | Flow::Steps(id, _)) => {
                write(out, format_args!(",\"bind_id\":\"{id:#x}\",\"flow_in\":true,\"flow_out\":true"));
            }
            None => {}
        }
        out.extend_from_slice(b",\"args\":{");
        for (index, &(name, value)) in slice.arguments.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            string(name, out);
            out.push(b':');
            match value {
                Argument::U64(value) if value <= EXACT => write(out, format_args!("{value}")),
                Argument::U64(value) => write(out, format_args!("\"{value}\"")),
                Argument::F64(value) if value.is_finite() => write(out, format_args!("{value:?}")),
                Argument::F64(value) => write(out, format_args!("\"{value}\"")),
                Argument::Text(value) => string(value, out),
            }
        }
        out.extend_from_slice(b"}}");
    }

    fn value(&mut self, row: &Row, at: u64, value: f64, out: &mut Vec<u8>) {
        event(row, "C", &row.path, at, out);
        out.extend_from_slice(b",\"args\":{");
        string(unit(row), out);
        write(out, format_args!(":{value:?}}}}}"));
    }

    fn end(&mut self, row: &Row, at: u64, summary: &TraceSummary, texts: &[(&str, &str)], out: &mut Vec<u8>) {
        event(row, "i", &summary.to_string(), at, out);
        let TraceSummary { slices, slices_not_drawn, texts_cut, records_lost, unfinished, bytes } = summary;
        write(
            out,
            format_args!(
                ",\"s\":\"g\",\"args\":{{\"slices\":{slices},\"slices not drawn\":{slices_not_drawn}"
            ),
        );
        write(out, format_args!(",\"texts cut\":{texts_cut},\"records lost\":{records_lost}"));
        write(out, format_args!(",\"unfinished\":{unfinished},\"bytes before\":{bytes}"));
        for (name, text) in texts {
            write(out, format_args!(",\"{name}\":"));
            string(text, out);
        }
        out.extend_from_slice(b"}}\n]\n");
    }
}

/// The name of a counter's series, since counters have no unit.
fn unit(row: &Row) -> &'static str {
    match row.unit {
        None | Some(Unit::Count) => "count",
        Some(Unit::Bytes) => "bytes",
        Some(Unit::Nanoseconds) => "ns",
        Some(Unit::Other(name)) => name,
    }
}

/// Begins an event; its time is in microseconds.
fn event(row: &Row, phase: &str, name: &str, at: u64, out: &mut Vec<u8>) {
    write(out, format_args!(",\n{{\"ph\":\"{phase}\",\"pid\":{},\"tid\":{}", row.root, row.id));
    write(out, format_args!(",\"ts\":{}.{:03},\"name\":", at / 1000, at % 1000));
    string(name, out);
}

fn metadata(row: &Row, thread: u64, kind: &str, name: &str, out: &mut Vec<u8>) {
    write(out, format_args!("{{\"ph\":\"M\",\"pid\":{},\"tid\":{thread}", row.root));
    write(out, format_args!(",\"name\":\"{kind}\",\"args\":{{\"name\":"));
    string(name, out);
    out.extend_from_slice(b"}}");
}

fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            control => write(out, format_args!("\\u{control:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Writing to a vector cannot fail.
fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}
