//! A software CUDA driver that runs in the process, for tests and for machines without a GPU. Everything is **simulated**.
//!
//! Call [`install`] before the first driver call: `transload-cuda-sys`, and `cust` on top of it, then use the software
//! driver instead of the system's. A test builds its own devices:
//!
//! ```
//! # #[cfg(any(target_os = "linux", windows))] {
//! use transload_cuda_sim::SimDevice;
//! use transload_cuda_sys::{Context, Device};
//!
//! transload_cuda_sim::install().expect("no driver was used before");
//! let sim = SimDevice::builder().total_memory(64 << 20).seed(7).build();
//! let context = Context::primary(Device::new(sim.ordinal()).expect("it was just built")).expect("it is healthy");
//! assert_eq!(context.memory_info().expect("it is healthy"), (64 << 20, 64 << 20));
//! drop(context);
//! assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
//! # }
//! ```
//!
//! # Behaviour
//! * Work runs **late**: enqueueing runs nothing. When a call waits, work runs in a random order drawn from the device's
//!   seed, among the orders that streams, events and the legacy default stream allow. A query may run a few operations.
//!   Large copies run in pieces. A seed that fails is reproducible.
//! * The host cannot dereference device addresses. Fresh memory contains `0xCD`, freed memory `0xDE`. Work that accesses
//!   memory that is not live sets the sticky error 700.
//! * Handles are looked up in tables; stale and unknown ones give CUDA's own error codes.
//! * Functions that are not implemented are not exported.
//! * With [`record_accesses`](SimDeviceBuilder::record_accesses), all accesses of queued work, and host accesses that are
//!   announced through `transload_core::host_access`, are checked for a happens-before order; [`SimDevice::races`] names
//!   both operations of each unordered pair.
//! * Event times are virtual: computed from the device's link speed and latency, and the same in every run of a seed.
//!
//! # Threads
//! Every driver function may be called from any thread. A host function runs on the thread that waits, without a lock;
//! driver calls inside it return `CUDA_ERROR_NOT_PERMITTED`.
//!
//! On macOS this crate is empty.
#![cfg(any(target_os = "linux", windows))]

mod access;
mod activities;
mod address_space;
mod advice;
#[allow(non_snake_case, reason = "the driver's names")]
mod api;
mod call_counts;
mod clock;
mod code;
mod device;
mod example_kernels;
mod execute;
mod faults;
mod graph;
pub mod harness;
mod host_kernel;
mod install;
mod kernels;
mod live_objects;
mod memory;
mod migrations;
mod op;
mod options;
mod pace;
mod rng;
mod scheduler;
mod state;
mod symbols;
mod timing;

pub use access::{AccessKind, AccessRecord, Actor, Race};
pub use call_counts::{CallCounts, count_calls, is_in_call};
pub use device::{Residency, SimDevice};
pub use host_kernel::{HostKernel, IllegalAddress, KernelAccess, KernelMemory, Launch, register_host_kernel};
pub use install::{NAME, install, install_with};
pub use live_objects::LiveObjects;
pub use migrations::Migrations;
pub use options::{DriverOptions, OpenMemory, SimDeviceBuilder};
pub use transload_cuda_sys::InstallError;

/// Returns the default seed of devices: the variable `TRANSLOAD_SIM_SEED`, else a constant. Print it if a test fails.
#[must_use]
pub fn seed() -> u64 {
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("TRANSLOAD_SIM_SEED").ok().and_then(|text| text.trim().parse().ok());
        given.unwrap_or(0x7261_6E73_6C6F_6164)
    })
}

/// Returns the names of all implemented driver functions.
#[must_use]
pub fn implemented() -> Vec<&'static str> {
    symbols::names().collect()
}

#[cfg(all(doctest, any(target_os = "linux", windows)))]
#[doc = include_str!("../README.md")]
struct Readme;
