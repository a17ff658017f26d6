//! The CUDA driver, loaded on first use, beneath [`cust`]; thin handles for device, context, stream and event.
//!
//! A program that links this crate starts on a machine without CUDA. The first call loads the driver (`libcuda.so.1`,
//! `nvcuda.dll`); [`Driver::get`] returns a typed error if it is missing, too old or without devices.
//!
//! * [`ffi`] contains every driver function that `cust` declares, and newer ones. Enums are passed as integers, because
//!   a newer driver may use values that a binding's enum lacks.
//! * `cust` is re-exported. Its declarations resolve to the same loaded functions, through hidden symbol aliases. Call
//!   [`Driver::get`] before the first call into `cust`: it links the aliases and initialises the driver.
//! * [`install`] replaces the driver by another implementation before first use (`transload-cuda-sim` does this).
//!
//! # Threads
//! Every item may be used from any thread. Handles bind their context during a call and restore the thread's previous
//! one.
//!
//! On macOS this crate is empty.
//!
//! # Example
//! ```
//! # #[cfg(any(target_os = "linux", windows))] {
//! use transload_cuda_sys::{Device, Driver};
//!
//! match Driver::get() {
//!     Ok(driver) => println!("CUDA driver {}, {:?} devices", driver.version(), driver.device_count()),
//!     Err(reason) => println!("no CUDA here: {reason}"),
//! }
//! # }
//! ```
#![cfg(any(target_os = "linux", windows))]

mod capture;
mod context;
mod device;
mod driver;
mod drop_errors;
mod error;
mod event;
mod graph;
mod stream;

pub use capture::{RelaxedCapture, relaxed};
pub use context::{Context, ContextFallback, ContextGuard, Loss, try_in_current};
pub use cust;
pub use device::{Device, attribute};
pub use driver::{Driver, Library, SymbolSource, Version, ffi, install, trace};
pub use drop_errors::{observe_drop_errors, record_drop_error, take_drop_errors};
pub use error::{DriverError, InstallError, Result, check};
pub use event::{Event, EventTiming};
pub use graph::{Capture, CaptureMode, Graph, GraphExec, GraphUpdate};
pub use stream::{AsStream, RawEvent, RawStream, Stream, StreamOptions};

#[cfg(all(doctest, any(target_os = "linux", windows)))]
#[doc = include_str!("../README.md")]
struct Readme;
