//! What is passed to a trace writer, and what it returns.

use std::fmt;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceFormat {
    /// Perfetto's protobuf packets, for `ui.perfetto.dev` and the trace processor. Nanoseconds are exact.
    Perfetto,
    /// The array form of Chrome's JSON, for `chrome://tracing` too. It is written to the nanosecond, but some viewers
    /// round to microseconds, or keep times as `f64`.
    Chrome,
}

/// Limits of a trace.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    pub(super) slices: u64,
}

impl TraceOptions {
    /// Returns the default: a million slices, which viewers still open quickly.
    #[must_use]
    pub fn new() -> Self {
        Self { slices: 1_000_000 }
    }

    /// Sets the number of slices that are drawn. What is over becomes counters; see [`TraceWriter`](crate::TraceWriter).
    #[must_use]
    pub fn slices(mut self, limit: u64) -> Self {
        self.slices = limit;
        self
    }
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A track of one trace, for slices and as the group of other tracks and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrackId {
    /// The number of the trace.
    pub(super) of: u64,
    pub(super) index: usize,
}

/// A counter of one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterId {
    /// The number of the trace.
    pub(super) of: u64,
    pub(super) row: usize,
}

/// The unit of a counter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Any other unit, such as `"B/s"`.
    Other(&'static str),
}

/// A piece of work on a track.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// Name that the viewer draws.
    pub name: &'a str,
    /// Time of the beginning in nanoseconds.
    pub begin: u64,
    /// Time of the end in nanoseconds; not before `begin`.
    pub end: u64,
    /// Arrow to or from slices of other tracks.
    pub flow: Option<Flow>,
    /// Names and values that the viewer lists; the names should differ.
    pub arguments: &'a [(&'a str, Argument<'a>)],
}

/// A slice's part in a flow, which is drawn as arrows between all slices of one number, in the order of their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The first slice, such as a submission. Once for each number.
    Start(u64),
    /// A later slice, such as the copy of a chunk.
    Step(u64),
    /// A later slice of two flows. Chrome's format has the first one only.
    Steps(u64, u64),
}

/// The value of a slice's argument.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Argument<'a> {
    /// A whole number.
    U64(u64),
    /// Any other number.
    F64(f64),
    /// A text.
    Text(&'a str),
}

/// What a trace contains. [`TraceWriter::finish`](crate::TraceWriter::finish) returns it and writes it into the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TraceSummary {
    /// Slices that are drawn.
    pub slices: u64,
    /// Slices that only counters show, since they exceed the limit or overlap too many others.
    pub slices_not_drawn: u64,
    /// Names and texts that were cut, since they exceed 4096 bytes.
    pub texts_cut: u64,
    /// Operations and transfers that the profiler had no room for.
    pub records_lost: u64,
    /// Timed operations and transfers whose end was not known when the trace ended.
    pub unfinished: u64,
    /// Bytes written. The copy in the trace has the bytes before itself.
    pub bytes: u64,
}

impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slices, slices_not_drawn, texts_cut, records_lost, unfinished, bytes } = self;
        write!(f, "{slices} slices, {slices_not_drawn} not drawn, {texts_cut} texts cut, ")?;
        write!(f, "{records_lost} records lost, {unfinished} unfinished, {bytes} bytes")
    }
}
