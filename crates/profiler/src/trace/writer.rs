//! The writer: places slices on rows, and counts those that are not drawn.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use transload_core::{Error, ErrorKind, Result};

use super::{
    chrome::Chrome,
    lane::Lane,
    not_drawn::{NotDrawn, Point},
    output::Output,
    perfetto::{ADVICE, Perfetto, WITHOUT_MIGRATIONS},
    row::{Encoder, Row},
    text,
    types::{CounterId, Slice, TraceFormat, TraceOptions, TraceSummary, TrackId, Unit},
};

/// Rows of one track.
const LANES: usize = 64;

/// The latest time that readers represent.
const LATEST: u64 = i64::MAX as u64;

/// Writes a trace: slices on tracks, and counters.
///
/// Times are nanoseconds of one clock of the caller's choice, from 0 to [`i64::MAX`]. Slices may arrive in any order.
///
/// **Overlaps.** A viewer can only draw slices of a row that nest or do not overlap. A slice that does neither goes to
/// another row of the same group, "name (2)" to "name (64)"; so do an outer slice that arrives after an inner one with
/// the same beginning, a slice that ends where an earlier one begins, and one that begins before the end of the 33rd
/// last slice of its row.
///
/// **Limits.** Slices above [`TraceOptions::slices`], and those for which 64 rows are not enough, are not drawn. For
/// each track, two counters show their number and the sum of their times so far, at most every 10 ms, and less often in
/// long traces. Texts are cut to 4096 bytes. The trace says what was left out; so does [`finish`](Self::finish).
///
/// **Output.** Each call passes whole packets to one `write_all`. So use a [`BufWriter`](std::io::BufWriter) for a
/// file. If writing stops at any byte, the file opens with all packets before. After a failed write, every call returns
/// its error ([`ErrorKind::Io`]) and writes nothing.
///
/// Memory is bounded for each track and counter. Once warm, a slice or value allocates nothing, unless a text is cut.
///
/// ```
/// use transload_profiler::{Argument, Flow, Slice, TraceFormat, TraceOptions, TraceWriter, Unit};
///
/// let mut file = Vec::new();
/// let mut trace = TraceWriter::new(&mut file, TraceFormat::Perfetto, TraceOptions::new())?;
/// let host = trace.track(None, "host")?;
/// let device = trace.track(None, "gpu 0")?;
/// let stream = trace.track(Some(device), "stream 3 (Normal)")?;
/// let bytes = trace.counter(Some(device), "bytes in flight", Unit::Bytes)?;
///
/// let submit = Slice { name: "submit", begin: 1_000, end: 2_000, flow: Some(Flow::Start(7)), arguments: &[] };
/// trace.slice(host, &submit)?;
/// let arguments = [("bytes", Argument::U64(4096)), ("method", Argument::Text("DirectCopy"))];
/// let copy = Slice { name: "copy", begin: 2_500, end: 9_000, flow: Some(Flow::Step(7)), arguments: &arguments };
/// trace.slice(stream, &copy)?;
/// trace.value(bytes, 2_500, 4096.0)?;
/// trace.value(bytes, 9_000, 0.0)?;
/// assert_eq!(trace.finish()?.slices, 2);
/// # Ok::<(), transload_core::Error>(())
/// ```
pub struct TraceWriter<W> {
    /// Differs from that of all others.
    number: u64,
    encoder: Box<dyn Encoder>,
    output: Output<W>,
    rows: Vec<Row>,
    /// Roots and paths of the counters.
    counters: BTreeSet<(u64, String)>,
    tracks: Vec<Track>,
    limit: u64,
    summary: TraceSummary,
    /// Lines of advice.
    advice: String,
    /// Why migrations were not recorded; empty if they were, or if that is not said.
    without_migrations: String,
    /// The latest time of a slice or value.
    last: u64,
}

struct Track {
    /// Lanes with their rows, of which the first is the track's own.
    lanes: Vec<(Lane, usize)>,
    not_drawn: Option<NotDrawn>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if writing fails.
    pub fn new(out: W, format: TraceFormat, options: TraceOptions) -> Result<Self> {
        let mut encoder: Box<dyn Encoder> = match format {
            TraceFormat::Perfetto => Box::new(Perfetto::default()),
            TraceFormat::Chrome => Box::new(Chrome),
        };
        let (name, path) = ("trace".to_owned(), "trace".to_owned());
        let row = Row { id: 1, parent: None, root: 1, rank: 0, name, path, unit: None };
        let mut output = Output::new(out);
        output.write(|out| encoder.begin(&row, out))?;
        let (rows, tracks, limit) = (vec![row], Vec::new(), options.slices);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            encoder,
            output,
            rows,
            counters: BTreeSet::new(),
            tracks,
            limit,
            summary: TraceSummary::default(),
            advice: String::new(),
            without_migrations: String::new(),
            last: 0,
        })
    }

    /// Adds a track, at the outermost level or in a group, which is any other track.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if writing fails, [`ErrorKind::InvalidArgument`] if the group is of another trace.
    pub fn track(&mut self, group: Option<TrackId>, name: &str) -> Result<TrackId> {
        let (parent, name, rank) = (self.parent(group)?, self.cut(name), self.rows.len() * LANES);
        let row = self.declare(parent, &name, None, rank)?;
        self.tracks.push(Track { lanes: vec![(Lane::new(), row)], not_drawn: None });
        Ok(TrackId { of: self.number, index: self.tracks.len() - 1 })
    }

    /// Adds a counter, at the outermost level or in a group.
    ///
    /// # Errors
    /// Like [`track`](Self::track).
    pub fn counter(&mut self, group: Option<TrackId>, name: &str, unit: Unit) -> Result<CounterId> {
        let (parent, name, rank) = (self.parent(group)?, self.cut(name), self.rows.len() * LANES);
        let row = self.declare(parent, &name, Some(unit), rank)?;
        Ok(CounterId { of: self.number, row })
    }

    /// Writes a slice.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if writing fails. [`ErrorKind::InvalidArgument`] if the slice ends before it begins, or the
    /// track is of another trace; [`ErrorKind::OutOfRange`] if it ends after [`i64::MAX`]. Then nothing is written,
    /// and the trace can be continued.
    pub fn slice(&mut self, track: TrackId, slice: &Slice<'_>) -> Result<()> {
        self.output.check()?;
        if slice.end < slice.begin {
            let Slice { begin, end, .. } = slice;
            let message = format!("slice ends at {end} ns, before it begins at {begin} ns");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        check_time(slice.end)?;
        self.check_track(track)?;
        self.last = self.last.max(slice.end);
        let Some(row) = self.place(track, slice)? else { return self.count(track, slice) };
        let (encoder, row) = (&mut self.encoder, &self.rows[row]);
        match text::too_long(slice) {
            0 => self.output.write(|out| encoder.slice(row, slice, out))?,
            texts => {
                self.summary.texts_cut += texts;
                text::with_cut(slice, |slice| self.output.write(|out| encoder.slice(row, slice, out)))?;
            }
        }
        self.summary.slices += 1;
        Ok(())
    }

    /// Writes the value that a counter has from a time on, in nanoseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if writing fails. [`ErrorKind::InvalidArgument`] if the value is not finite, or the counter is
    /// of another trace; [`ErrorKind::OutOfRange`] if the time is after [`i64::MAX`]. Then nothing is written, and the
    /// trace can be continued.
    pub fn value(&mut self, counter: CounterId, at: u64, value: f64) -> Result<()> {
        self.output.check()?;
        check_time(at)?;
        if !value.is_finite() {
            let message = format!("value of a counter must be finite, got {value}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let is_ours = counter.of == self.number;
        let Some(row) = self.rows.get(counter.row).filter(|row| is_ours && row.unit.is_some()) else {
            return Err(Error::new(ErrorKind::InvalidArgument, "counter is of another trace"));
        };
        self.last = self.last.max(at);
        self.output.write(|out| self.encoder.value(row, at, value, out))
    }

    /// Sets what the summary says of operations and transfers that never came.
    pub(crate) fn miss(&mut self, records_lost: u64, unfinished: u64) {
        self.summary.records_lost = records_lost;
        self.summary.unfinished = unfinished;
    }

    /// Sets why the trace is without migrations.
    pub(crate) fn lack_migrations(&mut self, why: Option<&str>) {
        self.without_migrations = why.map(text::cut).unwrap_or_default().into_owned();
    }

    /// Sets the advice at the end of the trace.
    pub(crate) fn advise(&mut self, advice: impl Iterator<Item = String>) {
        /// Pieces of advice, so that a reader takes the packet.
        const MOST: usize = 32;
        let lines = advice.take(MOST).map(|line| text::cut(&line).into_owned());
        self.advice = lines.collect::<Vec<_>>().join("\n");
    }

    /// Returns whether further slices are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.summary.slices >= self.limit
    }

    /// Flushes the output: what was written is in the file even if the process is killed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if this or an earlier write failed.
    pub fn flush(&mut self) -> Result<()> {
        self.output.flush()
    }

    /// Ends the trace with its summary, and flushes the output. A trace without this call opens too.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if this or an earlier write failed.
    pub fn finish(mut self) -> Result<TraceSummary> {
        for track in 0..self.tracks.len() {
            let not_drawn = self.tracks[track].not_drawn.as_mut();
            if let Some(point) = not_drawn.and_then(NotDrawn::last) {
                self.show(track, &point)?;
            }
        }
        self.summary.bytes = self.output.bytes();
        let texts = [(ADVICE, &self.advice[..]), (WITHOUT_MIGRATIONS, &self.without_migrations)];
        let texts: Vec<_> = texts.into_iter().filter(|(_, text)| !text.is_empty()).collect();
        self.output.write(|out| self.encoder.end(&self.rows[0], self.last, &self.summary, &texts, out))?;
        self.output.flush()?;
        Ok(TraceSummary { bytes: self.output.bytes(), ..self.summary })
    }

    /// Returns the name of a row, cut if it is too long.
    fn cut<'a>(&mut self, name: &'a str) -> Cow<'a, str> {
        self.summary.texts_cut += u64::from(text::is_too_long(name));
        text::cut(name)
    }

    /// Returns the row on which a slice is drawn, if it is.
    fn place(&mut self, track: TrackId, slice: &Slice<'_>) -> Result<Option<usize>> {
        if self.summary.slices >= self.limit {
            return Ok(None);
        }
        let lanes = &mut self.tracks[track.index].lanes;
        let mut accepting = lanes
            .iter_mut()
            .filter_map(|(lane, row)| lane.try_insert(slice.begin, slice.end).then_some(*row));
        if let Some(row) = accepting.next() {
            return Ok(Some(row));
        }
        let (count, first) = (lanes.len(), &self.rows[lanes[0].1]);
        if count == LANES {
            return Ok(None);
        }
        let (name, parent) = (format!("{} ({})", first.name, count + 1), first.parent);
        let rank = first.rank as usize + count;
        let row = self.declare(parent.map(index), &name, None, rank)?;
        let mut lane = Lane::new();
        lane.try_insert(slice.begin, slice.end);
        self.tracks[track.index].lanes.push((lane, row));
        Ok(Some(row))
    }

    /// Counts a slice that is not drawn.
    fn count(&mut self, track: TrackId, slice: &Slice<'_>) -> Result<()> {
        self.summary.slices_not_drawn += 1;
        if self.tracks[track.index].not_drawn.is_none() {
            let first = &self.rows[self.tracks[track.index].lanes[0].1];
            let (parent, rank) = (first.parent.map(index), first.rank as usize);
            let names = [
                (format!("{}: slices not drawn, total", first.name), Unit::Count),
                (format!("{}: time of slices not drawn, total", first.name), Unit::Nanoseconds),
            ];
            let mut counters = [0; 2];
            for ((name, unit), counter) in names.iter().zip(&mut counters) {
                *counter = self.declare(parent, name, Some(*unit), rank)?;
            }
            self.tracks[track.index].not_drawn = Some(NotDrawn::new(counters));
            self.show(track.index, &Point { at: slice.begin, values: [0, 0] })?;
        }
        let not_drawn = self.tracks[track.index].not_drawn.as_mut();
        not_drawn
            .and_then(|not_drawn| not_drawn.add(slice))
            .map_or(Ok(()), |point| self.show(track.index, &point))
    }

    /// Writes a point of the counters of slices that are not drawn.
    fn show(&mut self, track: usize, point: &Point) -> Result<()> {
        let Some(not_drawn) = &self.tracks[track].not_drawn else { return Ok(()) };
        self.output.write(|out| {
            for (counter, value) in not_drawn.counters.iter().zip(point.values) {
                self.encoder.value(&self.rows[*counter], point.at, value as f64, out);
            }
        })
    }

    /// Adds a row and returns its index.
    fn declare(
        &mut self,
        parent: Option<usize>,
        name: &str,
        unit: Option<Unit>,
        rank: usize,
    ) -> Result<usize> {
        let name = name.to_owned();
        let id = self.rows.len() as u64 + 1;
        let rank = i32::try_from(rank).unwrap_or(i32::MAX);
        let parent = parent.map(|parent| &self.rows[parent]);
        let path = match parent {
            Some(parent) if parent.parent.is_some() => format!("{} / {name}", parent.path),
            _ => name.clone(),
        };
        let root = parent.map_or(id, |parent| parent.root);
        let path = if unit.is_some() {
            let mut names =
                (1..).map(|count| if count == 1 { path.clone() } else { format!("{path} ({count})") });
            let path = names.find(|path| !self.counters.contains(&(root, path.clone()))).unwrap_or_default();
            self.counters.insert((root, path.clone()));
            path
        } else {
            path
        };
        let row = Row { id, parent: parent.map(|parent| parent.id), root, rank, name, path, unit };
        self.output.write(|out| self.encoder.row(&row, out))?;
        self.rows.push(row);
        Ok(self.rows.len() - 1)
    }

    /// Returns the row of a group.
    fn parent(&self, group: Option<TrackId>) -> Result<Option<usize>> {
        let Some(group) = group else { return Ok(None) };
        self.check_track(group)?;
        Ok(Some(self.tracks[group.index].lanes[0].1))
    }

    fn check_track(&self, track: TrackId) -> Result<()> {
        if track.of == self.number && track.index < self.tracks.len() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument, "track is of another trace"))
    }
}

/// Returns the index of the row with a number.
fn index(id: u64) -> usize {
    id as usize - 1
}

fn check_time(at: u64) -> Result<()> {
    if at <= LATEST {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::OutOfRange,
        format!("time of {at} ns is after the latest possible, {LATEST} ns"),
    ))
}
