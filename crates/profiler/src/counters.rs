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
/// Nanoseconds between two points of a counter in a trace that has as many slices as it may, and of a gauge that has many points.
const COARSE: u64 = 10_000_000;
/// Points of a gauge after which that is doubled, so that a trace of a day can be opened.
const POINTS: u32 = 1 << 16;

struct Counter {
    id: CounterId,
    value: i128,
    /// Time and value of the last point.
    written: Option<(u64, i128)>,
    /// The last change.
    changed: u64,
}

/// A value that is read now and then.
struct Gauge {
    id: CounterId,
    /// Time and value of the last point, and of a later reading that has none.
    written: (u64, f64),
    skipped: Option<(u64, f64)>,
    /// Nanoseconds between two points, and how many there are of these.
    interval: u64,
    points: u32,
}

/// The counters of one trace.
#[derive(Default)]
pub(crate) struct Counters {
    counters: Vec<Counter>,
    /// Changes by time and counter.
    changes: BinaryHeap<Reverse<(i64, usize, i64)>>,
    /// The time up to which points were written.
    reached: i64,
    /// Gauges by group and name.
    gauges: HashMap<Option<TrackId>, BTreeMap<String, Gauge>>,
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
        for Gauge { id, skipped, .. } in self.gauges.values().flat_map(BTreeMap::values) {
            skipped.map_or(Ok(()), |(at, value)| writer.value(*id, at, value))?;
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

    /// Writes a value that was read, if it differs from the last one of that name in the group, and does not follow it too soon.
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
        let Some(gauge) = gauges.get_mut(name) else {
            let (id, written) = (writer.counter(group, name, unit)?, (at, value));
            gauges.insert(name.to_owned(), Gauge { id, written, skipped: None, interval: 0, points: 0 });
            return writer.value(id, at, value);
        };
        let (before, last) = gauge.written;
        gauge.skipped = (value != last).then_some((at, value));
        if gauge.skipped.is_none() || at < before.saturating_add(gauge.interval) {
            return Ok(());
        }
        (gauge.written, gauge.skipped) = ((at, value), None);
        gauge.points += 1;
        if gauge.points == POINTS {
            (gauge.points, gauge.interval) = (0, (2 * gauge.interval).max(COARSE));
        }
        writer.value(gauge.id, at, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TraceFormat, TraceOptions};

    #[test]
    fn gauge_that_always_changes_has_fewer_points_the_longer_it_is_read() {
        const READINGS: i64 = 1 << 19;
        let mut text = Vec::new();
        let mut writer = TraceWriter::new(&mut text, TraceFormat::Chrome, TraceOptions::new()).unwrap();
        let mut counters = Counters::default();
        for number in 0..READINGS {
            counters
                .gauge(&mut writer, None, ("rows", Unit::Count), number * 5_000_000, number as f64)
                .unwrap();
        }
        counters.finish(&mut writer).unwrap();
        writer.finish().unwrap();
        let text = String::from_utf8(text).unwrap();
        let points = text.matches("\"ph\":\"C\"").count();
        assert!((3 * POINTS as usize..4 * POINTS as usize).contains(&points), "{points}");
        assert!(text.contains(&(READINGS - 1).to_string()), "the last value is shown");
    }
}
