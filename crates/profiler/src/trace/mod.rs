//! Traces: rows of slices and counters, streamed to a file for Perfetto's or Chrome's viewer.
//!
//! [`TraceWriter`] knows neither queues nor devices: its caller names the rows and passes times. It keeps no slices,
//! so its memory grows with the number of tracks and counters only.

mod chrome;
mod lane;
mod messages;
mod not_drawn;
mod output;
mod perfetto;
mod reader;
mod row;
mod text;
mod types;
mod writer;

pub use reader::TraceContents;
pub use types::{Argument, CounterId, Flow, Slice, TraceFormat, TraceOptions, TraceSummary, TrackId, Unit};
pub use writer::TraceWriter;
