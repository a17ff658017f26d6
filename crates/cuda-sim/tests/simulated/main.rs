//! Properties of the software driver only: lateness, seeds, faults, races, live objects, stale handles.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod batches;
mod calls;
mod capture;
mod clock;
mod early;
mod faults;
#[path = "../it/gate.rs"]
#[allow(dead_code, reason = "shared with the tests that run on hardware")]
mod gate;
mod host_functions;
mod kernels;
mod lateness;
mod managed;
mod memory;
mod peers;
mod races;
#[path = "../it/raw.rs"]
#[allow(dead_code, reason = "shared with the tests that run on hardware")]
mod raw;
