//! Counters of a trace: bytes in flight and rates, from the spans of timed operations, and values that are read now and then.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    io::Write,
};

use transload_core::Result;

use crate::{CounterId, TraceWriter, TrackId, Unit};

/// Changes that wait for earlier ones. Beyond it the earliest are written, and what comes later still is moved after them.
const WAITING: usize = 1 << 16;
/// Nanoseconds between two points of a counter in a trace that has as many slices as it may.
const COARSE: u64 = 10_000_000;

struct Counter {
    id: CounterId,
    value: i128,
    /// Time and value of the last point.
    written: Option<(u64, i128)>,
    /// The last change.
    changed: u64,
}

/// The counters of one trace.
#[derive(Default)]
pub(crate) struct Counters {
    counters: Vec<Counter>,
    /// Changes by time and counter.
    changes: BinaryHeap<Reverse<(i64, usize, i64)>>,
    /// The time up to which points were written.
    reached: i64,
    /// Last values of gauges by group and name.
    gauges: HashMap<Option<TrackId>, BTreeMap<String, (CounterId, f64)>>,
}

impl Counters {
    /// Adds a counter that the writer knows, and returns its index. Its value is 0.
    pub(crate) fn add(&mut self, id: CounterId) -> usize {
        self.counters.push(Counter { id, value: 0, written: None, changed: 0 });
        self.counters.len() - 1
    }

    /// Raises a counter from `begin` to `end`, in nanoseconds.
    pub(crate) fn raise<W: Write>(
        &mut self,
        writer: &mut TraceWriter<W>,
        counter: usize,
        (begin, end): (i64, i64),
        by: u64,
    ) -> Result<()> {
        let by = i64::try_from(by).unwrap_or(i64::MAX);
        self.change(writer, counter, [(begin, by), (end, -by)])
    }

    /// Raises a counter for good, at `end`; at `begin` its value is shown if it was not before.
    pub(crate) fn add_up<W: Write>(
        &mut self,
        writer: &mut TraceWriter<W>,
        counter: usize,
        (begin, end): (i64, i64),
        by: u64,
    ) -> Result<()> {
        let by = i64::try_from(by).unwrap_or(i64::MAX);
        self.change(writer, counter, [(begin, 0), (end, by)])
    }

    fn change<W: Write>(
        &mut self,
        writer: &mut TraceWriter<W>,
        counter: usize,
        changes: [(i64, i64); 2],
    ) -> Result<()> {
        for (at, by) in changes {
            self.changes.push(Reverse((at.max(self.reached), counter, by)));
        }
        while self.changes.len() > WAITING {
            self.apply(writer)?;
        }
        Ok(())
    }

    /// Writes what changed up to a time. No earlier change comes later, or it is moved to that time.
    pub(crate) fn advance<W: Write>(&mut self, writer: &mut TraceWriter<W>, to: i64) -> Result<()> {
        while self.changes.peek().is_some_and(|Reverse((at, ..))| *at <= to) {
            self.apply(writer)?;
        }
        self.reached = self.reached.max(to);
        Ok(())
    }

    /// Writes what is left, at the end of the trace.
    pub(crate) fn finish<W: Write>(&mut self, writer: &mut TraceWriter<W>) -> Result<()> {
        while !self.changes.is_empty() {
            self.apply(writer)?;
        }
        for counter in &self.counters {
            if counter.written.is_some_and(|(_, value)| value != counter.value) {
                writer.value(counter.id, counter.changed, counter.value as f64)?;
            }
        }
        Ok(())
    }

    /// Applies the earliest change, and writes a point unless the counter changes again at that time.
    fn apply<W: Write>(&mut self, writer: &mut TraceWriter<W>) -> Result<()> {
        let Some(Reverse((at, index, by))) = self.changes.pop() else { return Ok(()) };
        self.reached = self.reached.max(at);
        let counter = &mut self.counters[index];
        counter.value += i128::from(by);
        counter.changed = at.max(0).cast_unsigned();
        if self.changes.peek().is_some_and(|Reverse((next, other, _))| (*next, *other) == (at, index)) {
            return Ok(());
        }
        let is_coarse = writer.is_full();
        if let Some((last, value)) = counter.written
            && (value == counter.value || is_coarse && counter.changed < last.saturating_add(COARSE))
        {
            return Ok(());
        }
        counter.written = Some((counter.changed, counter.value));
        writer.value(counter.id, counter.changed, counter.value as f64)
    }

    /// Writes a value that was read, if it differs from the last one of that name in the group.
    pub(crate) fn gauge<W: Write>(
        &mut self,
        writer: &mut TraceWriter<W>,
        group: Option<TrackId>,
        (name, unit): (&str, Unit),
        at: i64,
        value: f64,
    ) -> Result<()> {
        let at = at.max(0).cast_unsigned();
        let gauges = self.gauges.entry(group).or_default();
        if let Some((id, last)) = gauges.get_mut(name) {
            if *last == value {
                return Ok(());
            }
            *last = value;
            return writer.value(*id, at, value);
        }
        let id = writer.counter(group, name, unit)?;
        gauges.insert(name.to_owned(), (id, value));
        writer.value(id, at, value)
    }
}
