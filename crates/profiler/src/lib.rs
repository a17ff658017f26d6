//! Listens to transfers through core's [`Observer`](transload_core::Observer), whatever backends they run on.
//!
//! **Begun:** [`TransferLog`] keeps the last ends of transfers and counts all of them. Stream reports, device
//! timelines, traces for a viewer and metrics for a monitor are not here yet.
//!
//! The log measures nothing itself: it keeps the report that each transfer carries. A time that nobody measured stays
//! absent there; it is never estimated here.

mod record;
mod totals;
mod transfer_log;

pub use record::{Outcome, TransferRecord};
pub use totals::Totals;
pub use transfer_log::TransferLog;
