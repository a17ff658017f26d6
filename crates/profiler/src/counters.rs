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
/// Points after which that is doubled, so that a trace of a day can be opened.
const POINTS: u32 = 1 << 16;

/// How far apart the points of a counter are.
#[derive(Default)]
struct Spacing {
    /// Nanoseconds between two points, and how many there are of these.
    interval: u64,
    points: u32,
}

impl Spacing {
    /// Counts a point.
    fn add(&mut self) {
        self.points += 1;
        if self.points == POINTS && !transload_core::mutant!("profiler/points-get-sparser") {
            (self.points, self.interval) = (0, (2 * self.interval).max(COARSE));
        }
    }
}

struct Counter {
    id: CounterId,
    value: i128,
    /// Time and value of the last point.
    written: Option<(u64, i128)>,
    /// The last change.
    changed: u64,
    /// Of the points since the trace has as many slices as it may.
    spacing: Spacing,
}

/// A value that is read now and then.
struct Gauge {
    id: CounterId,
    /// Time and value of the last point, and of a later reading that has none.
    written: (u64, f64),
    skipped: Option<(u64, f64)>,
    spacing: Spacing,
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
        let spacing = Spacing { interval: COARSE, points: 0 };
        self.counters.push(Counter { id, value: 0, written: None, changed: 0, spacing });
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
            && (value == counter.value
                || is_coarse && counter.changed < last.saturating_add(counter.spacing.interval))
        {
            return Ok(());
        }
        if is_coarse {
            counter.spacing.add();
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
            gauges.insert(name.to_owned(), Gauge { id, written, skipped: None, spacing: Spacing::default() });
            return writer.value(id, at, value);
        };
        let (before, last) = gauge.written;
        gauge.skipped = (value != last).then_some((at, value));
        if gauge.skipped.is_none() || at < before.saturating_add(gauge.spacing.interval) {
            return Ok(());
        }
        (gauge.written, gauge.skipped) = ((at, value), None);
        gauge.spacing.add();
        writer.value(gauge.id, at, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Slice, TraceFormat, TraceOptions};

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

    #[test]
    fn counter_of_a_full_trace_has_fewer_points_the_longer_it_changes() {
        const CHANGES: i64 = 1 << 19;
        let mut text = Vec::new();
        let options = TraceOptions::new().slices(1);
        let mut writer = TraceWriter::new(&mut text, TraceFormat::Chrome, options).unwrap();
        let track = writer.track(None, "stream").unwrap();
        for begin in [0, 10] {
            let slice = Slice { name: "copy", begin, end: begin + 5, flow: None, arguments: &[] };
            writer.slice(track, &slice).unwrap();
        }
        let mut counters = Counters::default();
        let id = writer.counter(None, "bytes in flight", Unit::Bytes).unwrap();
        let counter = counters.add(id);
        for number in 1..=CHANGES {
            let begin = number * 10_000_000;
            counters.raise(&mut writer, counter, (begin, begin + 5_000_000), 64).unwrap();
            counters.advance(&mut writer, begin).unwrap();
        }
        counters.finish(&mut writer).unwrap();
        writer.finish().unwrap();
        let points = String::from_utf8(text).unwrap().matches("\"ph\":\"C\"").count();
        assert!(points < 5 * POINTS as usize, "{points}");
    }
}
