//! Records transfers of any backend, through core's [`Observer`](transload_core::Observer).
//!
//! **Begun:** [`TransferLog`] keeps records of the last transfers and counts all of them. Stream reports, device
//! timelines, traces and metrics are not implemented yet.
//!
//! The log measures nothing itself: it keeps each transfer's report. A time that was not measured stays absent.

mod record;
mod totals;
mod trace;
mod transfer_log;

pub use record::{Outcome, TransferRecord};
pub use totals::Totals;
pub use trace::{
    Argument, CounterId, Flow, Slice, TraceFormat, TraceOptions, TraceSummary, TraceWriter, TrackId, Unit,
};
pub use transfer_log::TransferLog;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
