//! Tests of core's promises, one module per promise, with a mock backend whose work completes on the test's
//! command.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod adopt_fences;
mod aliases;
mod awaiting;
mod batch;
mod blocks;
mod borrowed;
mod bounds;
mod claim_order;
mod costs;
mod covered;
mod deadlock;
mod devices;
mod errors;
mod failed_lists;
mod failures;
mod fills;
mod hazards;
mod loans;
mod locks;
mod mock;
mod model;
mod order;
mod overtaking;
mod pair_list;
mod partial_failures;
mod patterns;
mod profile;
mod range_guards;
mod reclaim;
mod recorded;
mod reports;
#[cfg(feature = "serde")]
mod serialized;
mod size_class;
mod transfers;
mod truth;
mod turns;
mod use_epoch;
mod views;
