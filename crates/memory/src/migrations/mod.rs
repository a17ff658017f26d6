//! How often unified memory moved and how often somebody had to wait for it, as the driver's own tools count it.
//!
//! The driver tells this only to CUPTI, its tools library, which is opened when the first tracker is started and not before.
//! Nothing here is estimated: where the library or its counters are missing, starting a tracker says so.

mod counts;
mod cupti;
mod regions;
mod self_test;
mod session;
mod tracker;

pub use counts::MigrationCounts;
pub use tracker::MigrationTracker;
