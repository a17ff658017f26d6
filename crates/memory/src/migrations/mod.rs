//! Counts of unified-memory migrations and page faults, from CUPTI.
//!
//! The driver reports these only to CUPTI, which is opened when the first tracker starts. Nothing is estimated: without
//! the library or its counters, starting a tracker fails.

mod counts;
mod cupti;
mod regions;
mod self_test;
mod session;
mod tracker;

pub use counts::MigrationCounts;
pub use tracker::MigrationTracker;
