//! What moved, when and how fast: operations and transfers of any backend.
//!
//! [`StreamProfiler`] counts the operations of streams, times some of them by their device's clock, and reports them by stream, device and
//! path, as text, for `serde`, and as a trace for Perfetto's viewer. [`TransferLog`] keeps the reports of the last transfers.
//!
//! Nothing is estimated: a time that was not measured is absent, and every report says what was timed and what was lost.

mod advice;
mod adviser;
mod busy;
mod clock_map;
mod collecting;
mod collector;
mod costs;
mod counters;
mod engines;
mod gauges;
mod idle_links;
mod idle_pinned;
mod inbox;
mod migrations;
#[cfg(feature = "nvtx")]
mod nvtx;
mod open_transfers;
mod operation_guard;
mod options;
mod pending;
mod profiler;
#[cfg(feature = "prometheus")]
mod prometheus;
mod recent;
mod record;
mod report;
mod runs;
mod slots;
mod statistics;
mod stream;
mod stream_report;
mod streams;
mod timed_transfers;
mod timeline;
mod totals;
mod trace;
mod transfer_log;
mod unavailable;

pub use advice::{Advice, AdviceBasis, AdviceKind};
pub use migrations::MigrationReport;
pub use operation_guard::OperationGuard;
pub use options::ProfilerOptions;
pub use profiler::StreamProfiler;
#[cfg(feature = "prometheus")]
pub use prometheus::PrometheusCollector;
pub use record::{Outcome, TransferRecord};
pub use report::{
    ClockReport, Direction, DirectionReport, EngineReport, GapReport, PathReport, ProfilerReport,
};
pub use stream_report::{KindReport, Percentiles, StreamReport, TimesReport};
pub use totals::Totals;
pub use trace::{
    Argument, CounterId, Flow, Slice, TraceContents, TraceFormat, TraceOptions, TraceSummary, TraceWriter,
    TrackId, Unit,
};
pub use transfer_log::TransferLog;
pub use unavailable::UnavailableDevice;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
