//! Reads Perfetto's format as its viewer does: by field numbers, events in the order of their times, and the ends of a
//! row's slices matched with the innermost beginning.

use std::collections::BTreeMap;

use super::fields::{Field, all, take};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Packet {
    pub(crate) timestamp: Option<u64>,
    pub(crate) sequence: u64,
    pub(crate) flags: u64,
    pub(crate) row: Option<Row>,
    pub(crate) event: Option<Event>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: u64,
    pub(crate) parent: u64,
    pub(crate) name: String,
    pub(crate) counter: Option<(u64, String)>,
    pub(crate) ordering: u64,
    pub(crate) rank: u64,
    pub(crate) merge: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: u64,
    pub(crate) row: u64,
    pub(crate) name: Option<String>,
    pub(crate) value: Option<f64>,
    pub(crate) flows: Vec<u64>,
    /// Names and values as text.
    pub(crate) arguments: Vec<(String, String)>,
}

/// A slice as a viewer draws it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Drawn {
    pub(crate) name: String,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) row: String,
}

pub(crate) struct Trace(pub(crate) Vec<Packet>);

/// Reads the packets of a file up to a cut packet, and returns whether there is one.
pub(crate) fn read_prefix(mut bytes: &[u8]) -> (Vec<Packet>, bool) {
    let mut packets = Vec::new();
    while !bytes.is_empty() {
        let Some((number, field)) = take(&mut bytes) else { return (packets, true) };
        assert_eq!(number, 1);
        packets.push(packet(field.bytes()));
    }
    (packets, false)
}

/// Reads a whole file.
pub(crate) fn read(bytes: &[u8]) -> Option<Trace> {
    let (packets, cut) = read_prefix(bytes);
    (!cut).then_some(Trace(packets))
}

fn packet(bytes: &[u8]) -> Packet {
    let mut packet = Packet::default();
    for (number, field) in all(bytes) {
        match number {
            8 => packet.timestamp = Some(field.varint()),
            10 => packet.sequence = field.varint(),
            11 => packet.event = Some(event(field.bytes())),
            13 => packet.flags = field.varint(),
            60 => packet.row = Some(row(field.bytes())),
            other => panic!("field {other} of a packet"),
        }
    }
    packet
}

fn row(bytes: &[u8]) -> Row {
    let mut row = Row::default();
    for (number, field) in all(bytes) {
        match number {
            1 => row.id = field.varint(),
            2 => row.name = field.text(),
            5 => row.parent = field.varint(),
            8 => {
                let counter = row.counter.insert((0, String::new()));
                for (number, field) in all(field.bytes()) {
                    match number {
                        3 => counter.0 = field.varint(),
                        6 => counter.1 = field.text(),
                        other => panic!("field {other} of a counter"),
                    }
                }
            }
            11 => row.ordering = field.varint(),
            12 => row.rank = field.varint(),
            15 => row.merge = field.varint(),
            other => panic!("field {other} of a track"),
        }
    }
    row
}

fn event(bytes: &[u8]) -> Event {
    let mut event = Event::default();
    for (number, field) in all(bytes) {
        match number {
            4 => event.arguments.push(argument(field.bytes())),
            9 => event.kind = field.varint(),
            11 => event.row = field.varint(),
            23 => event.name = Some(field.text()),
            44 => event.value = Some(f64::from_bits(field.fixed64())),
            47 => event.flows.push(field.fixed64()),
            other => panic!("field {other} of an event"),
        }
    }
    event
}

fn argument(bytes: &[u8]) -> (String, String) {
    let fields = all(bytes);
    let value = |number| fields.iter().find(|field| field.0 == number).map(|field| field.1);
    let text = [3, 5, 6].into_iter().filter_map(|number| Some((number, value(number)?)));
    let text = text.map(|(number, field)| match (number, field) {
        (3, Field::Varint(value)) => value.to_string(),
        (5, Field::Fixed64(bits)) => f64::from_bits(bits).to_string(),
        (_, field) => field.text(),
    });
    (value(10).unwrap().text(), text.collect::<Vec<_>>().join(","))
}

impl Trace {
    pub(crate) fn rows(&self) -> BTreeMap<u64, &Row> {
        self.0.iter().filter_map(|packet| packet.row.as_ref()).map(|row| (row.id, row)).collect()
    }

    pub(crate) fn row(&self, name: &str) -> &Row {
        self.0.iter().filter_map(|packet| packet.row.as_ref()).find(|row| row.name == name).unwrap()
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = (u64, &Event)> {
        self.0.iter().filter_map(|packet| Some((packet.timestamp?, packet.event.as_ref()?)))
    }

    /// The points of a counter.
    pub(crate) fn points(&self, name: &str) -> Vec<(u64, f64)> {
        let id = self.row(name).id;
        let points = self.events().filter(|(_, event)| event.row == id && event.kind == 4);
        points.map(|(at, event)| (at, event.value.unwrap())).collect()
    }

    /// The slices that a viewer draws, by name.
    pub(crate) fn drawn(&self) -> Vec<Drawn> {
        let mut events: Vec<_> = self.events().collect();
        events.sort_by_key(|(at, _)| *at);
        let (rows, mut open, mut drawn) = (self.rows(), BTreeMap::<u64, Vec<_>>::new(), Vec::new());
        for (at, event) in events {
            let open = open.entry(event.row).or_default();
            match event.kind {
                1 => open.push((event.name.clone().unwrap(), at)),
                2 => {
                    let (name, begin) = open.pop().unwrap();
                    drawn.push(Drawn { name, begin, end: at, row: rows[&event.row].name.clone() });
                }
                _ => {}
            }
        }
        assert!(open.values().all(Vec::is_empty));
        drawn.sort();
        drawn
    }
}
