//! Perfetto's format: a sequence of packets, each with a length.
//!
//! The packets name no clock. Then a reader takes times for those of the trace's own clock (`BOOTTIME`, 6) and converts
//! nothing; any other clock would need a snapshot of both, and events without one are discarded.

use super::{
    messages::{
        AnnotationValue, ChildTracksOrdering, CounterDescriptor, CounterUnit, DebugAnnotation, EventType,
        INCREMENTAL_STATE_CLEARED, SiblingMergeBehavior, TracePacket, TrackDescriptor, TrackEvent,
    },
    row::{Encoder, Row},
    types::{Argument, Flow, Slice, TraceSummary, Unit},
};

/// Names of the summary's values.
pub(super) const SLICES: &str = "slices";
pub(super) const NOT_DRAWN: &str = "slices not drawn";
pub(super) const TEXTS_CUT: &str = "texts cut";
pub(super) const RECORDS_LOST: &str = "records lost";
pub(super) const UNFINISHED: &str = "unfinished";
pub(super) const BYTES: &str = "bytes before";
pub(super) const ADVICE: &str = "advice";
pub(super) const WITHOUT_MIGRATIONS: &str = "without migrations";

/// The only sequence; 0 is invalid.
const SEQUENCE: u32 = 1;

/// Encodes packets, whose memory it keeps for the next ones.
#[derive(Default)]
pub(super) struct Perfetto {
    /// An event with name and annotations.
    named: TracePacket,
    /// The end of a slice, or a counter's value.
    plain: TracePacket,
    annotations: Vec<DebugAnnotation>,
    texts: Vec<String>,
}

impl Encoder for Perfetto {
    fn begin(&mut self, row: &Row, out: &mut Vec<u8>) {
        encode(&TracePacket { sequence_flags: Some(INCREMENTAL_STATE_CLEARED), ..declaration(row) }, out);
    }

    fn row(&mut self, row: &Row, out: &mut Vec<u8>) {
        encode(&declaration(row), out);
    }

    fn slice(&mut self, row: &Row, slice: &Slice<'_>, out: &mut Vec<u8>) {
        self.encode_named(row, EventType::SliceBegin, slice, out);
        self.encode_plain(row, EventType::SliceEnd, slice.end, None, out);
    }

    fn value(&mut self, row: &Row, at: u64, value: f64, out: &mut Vec<u8>) {
        self.encode_plain(row, EventType::Counter, at, Some(value), out);
    }

    fn end(&mut self, row: &Row, at: u64, summary: &TraceSummary, texts: &[(&str, &str)], out: &mut Vec<u8>) {
        let numbers = [
            (SLICES, Argument::U64(summary.slices)),
            (NOT_DRAWN, Argument::U64(summary.slices_not_drawn)),
            (TEXTS_CUT, Argument::U64(summary.texts_cut)),
            (RECORDS_LOST, Argument::U64(summary.records_lost)),
            (UNFINISHED, Argument::U64(summary.unfinished)),
            (BYTES, Argument::U64(summary.bytes)),
        ];
        let texts = texts.iter().map(|(name, text)| (*name, Argument::Text(text)));
        let arguments: Vec<_> = numbers.into_iter().chain(texts).collect();
        let slice =
            Slice { name: &summary.to_string(), begin: at, end: at, flow: None, arguments: &arguments };
        self.encode_named(row, EventType::Instant, &slice, out);
    }
}

impl Perfetto {
    fn encode_named(&mut self, row: &Row, r#type: EventType, slice: &Slice<'_>, out: &mut Vec<u8>) {
        let event = event(&mut self.named, row, r#type, slice.begin);
        replace(event.name.get_or_insert_default(), slice.name);
        event.flow_ids.clear();
        match slice.flow {
            Some(Flow::Start(id) | Flow::Step(id)) => event.flow_ids.push(id),
            Some(Flow::Steps(one, other)) => event.flow_ids.extend([one, other]),
            None => {}
        }
        for annotation in &mut event.debug_annotations {
            if let Some(AnnotationValue::Text(text)) = annotation.value.take() {
                self.texts.push(text);
            }
        }
        self.annotations.append(&mut event.debug_annotations);
        for &(name, value) in slice.arguments {
            let mut annotation = self.annotations.pop().unwrap_or_default();
            replace(annotation.name.get_or_insert_default(), name);
            annotation.value = Some(match value {
                Argument::U64(value) => AnnotationValue::Unsigned(value),
                Argument::F64(value) => AnnotationValue::Double(value),
                Argument::Text(value) => {
                    let mut text = self.texts.pop().unwrap_or_default();
                    replace(&mut text, value);
                    AnnotationValue::Text(text)
                }
            });
            event.debug_annotations.push(annotation);
        }
        encode(&self.named, out);
    }

    fn encode_plain(&mut self, row: &Row, r#type: EventType, at: u64, value: Option<f64>, out: &mut Vec<u8>) {
        event(&mut self.plain, row, r#type, at).double_counter_value = value;
        encode(&self.plain, out);
    }
}

/// Sets what all events have.
fn event<'a>(packet: &'a mut TracePacket, row: &Row, r#type: EventType, at: u64) -> &'a mut TrackEvent {
    packet.timestamp = Some(at);
    packet.trusted_packet_sequence_id = Some(SEQUENCE);
    let event = packet.track_event.get_or_insert_default();
    event.r#type = Some(r#type.into());
    event.track_uuid = Some(row.id);
    event
}

fn declaration(row: &Row) -> TracePacket {
    let counter = row.unit.map(|unit| {
        let (unit, name) = match unit {
            Unit::Count => (Some(CounterUnit::Count), None),
            Unit::Bytes => (Some(CounterUnit::SizeBytes), None),
            Unit::Nanoseconds => (Some(CounterUnit::TimeNs), None),
            Unit::Other(name) => (None, Some(name.to_owned())),
        };
        CounterDescriptor { unit: unit.map(i32::from), unit_name: name }
    });
    let descriptor = TrackDescriptor {
        uuid: Some(row.id),
        name: Some(row.name.clone()),
        parent_uuid: row.parent,
        child_ordering: row.unit.is_none().then_some(ChildTracksOrdering::Explicit.into()),
        sibling_order_rank: Some(row.rank),
        sibling_merge_behavior: Some(SiblingMergeBehavior::None.into()),
        counter,
    };
    let (track_descriptor, trusted_packet_sequence_id) = (Some(descriptor), Some(SEQUENCE));
    TracePacket { track_descriptor, trusted_packet_sequence_id, ..TracePacket::default() }
}

/// Appends a packet as field 1 of the message `Trace`, which is the file.
fn encode(packet: &TracePacket, out: &mut Vec<u8>) {
    prost::encoding::message::encode(1, packet, out);
}

/// Replaces a text, in its memory.
fn replace(text: &mut String, by: &str) {
    text.clear();
    text.push_str(by);
}
