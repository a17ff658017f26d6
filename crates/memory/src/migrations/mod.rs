//! Counts of unified-memory migrations and page faults, from CUPTI.
//!
//! The driver reports these only to CUPTI, which is opened when the first tracker starts. Nothing is estimated: without
//! the library or its counters, starting a tracker fails.

mod counts;
mod regions;
mod self_test;
mod tracker;

pub use counts::MigrationCounts;
pub(crate) use regions::{Event, Record, Regions};
pub use tracker::MigrationTracker;
