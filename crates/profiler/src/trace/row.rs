//! Rows of a trace, and what each format does with them.

use super::types::{Slice, TraceSummary, Unit};

/// A row of the viewer: a lane of a track, or a counter.
pub(super) struct Row {
    /// Number within the trace, from 1.
    pub(super) id: u64,
    /// The row that this one is shown under.
    pub(super) parent: Option<u64>,
    /// The outermost row above, or this one.
    pub(super) root: u64,
    /// Position among the rows of the same parent.
    pub(super) rank: i32,
    pub(super) name: String,
    /// The names from below the root to this row, for formats with two levels. Differs for each counter of a root.
    pub(super) path: String,
    /// Of a counter.
    pub(super) unit: Option<Unit>,
}

/// A format. Each call appends whole packets to `out`.
pub(super) trait Encoder: Send {
    /// The beginning of the trace, and the row that the summary is shown on.
    fn begin(&mut self, row: &Row, out: &mut Vec<u8>);
    fn row(&mut self, row: &Row, out: &mut Vec<u8>);
    fn slice(&mut self, row: &Row, slice: &Slice<'_>, out: &mut Vec<u8>);
    /// `value` is finite.
    fn value(&mut self, row: &Row, at: u64, value: f64, out: &mut Vec<u8>);
    /// The end of the trace, with texts of these names.
    fn end(&mut self, row: &Row, at: u64, summary: &TraceSummary, texts: &[(&str, &str)], out: &mut Vec<u8>);
}
