//! A software CUDA driver, in process, for tests and for machines without a GPU. Everything about it is **simulated**.
//!
//! [`install`] puts it in the place of the system's driver before the first driver call; from then on all of
//! `transload-cuda-sys`, and `cust` above it, runs on it. A test builds its own devices:
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
//! # What it promises
//! * Work runs **late**: enqueueing runs nothing. When something is waited for, work runs in an order drawn from the
//!   device's seed among those that streams, events and the legacy default stream allow; a query lets a little of it
//!   happen. Large copies land in pieces. A seed that failed fails again.
//! * Device addresses cannot be dereferenced by the host. Fresh memory holds `0xCD`, memory that goes is overwritten with
//!   `0xDE`, and work that touches what is not live makes the error 700 stick to the context.
//! * Handles are looked up in tables; stale and unknown ones are refused with the driver's own codes.
//! * A function that is not implemented is absent.
//! * With [`record_accesses`](SimDeviceBuilder::record_accesses) every access of queued work, and of the host as far as it
//!   is announced through `transload_core::host_access`, is checked for a happens-before order;
//!   [`SimDevice::races`] names both operations of each pair that lacks one.
//! * Event times are virtual: made of the device's link speed and latency, the same in every run of a seed.
//!
//! # Threads
//! Every driver function may be called from any thread. Host functions run on the thread that waits, without any lock;
//! driver calls inside them answer `CUDA_ERROR_NOT_PERMITTED`.
//!
//! On macOS this crate is empty.
#![cfg(any(target_os = "linux", windows))]

mod access;
mod address_space;
mod advice;
#[allow(non_snake_case, reason = "the driver's names")]
mod api;
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
mod rng;
mod scheduler;
mod state;
mod symbols;
mod timing;

pub use access::{AccessKind, AccessRecord, Actor, Race};
pub use device::{Residency, SimDevice};
pub use host_kernel::{HostKernel, IllegalAddress, KernelAccess, KernelMemory, Launch, register_host_kernel};
pub use install::{NAME, install, install_with};
pub use live_objects::LiveObjects;
pub use migrations::Migrations;
pub use options::{DriverOptions, SimDeviceBuilder};
pub use transload_cuda_sys::InstallError;

/// The seed of devices that are given none: the variable `TRANSLOAD_SIM_SEED`, else a fixed number. Print it where a test
/// fails.
#[must_use]
pub fn seed() -> u64 {
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("TRANSLOAD_SIM_SEED").ok().and_then(|text| text.trim().parse().ok());
        given.unwrap_or(0x7261_6E73_6C6F_6164)
    })
}

/// The names of all driver functions that are implemented.
#[must_use]
pub fn implemented() -> Vec<&'static str> {
    symbols::names().collect()
}
