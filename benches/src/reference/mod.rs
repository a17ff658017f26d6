//! Hand-written references without the library, with which every row is compared.

#[cfg(any(target_os = "linux", windows))]
mod driver;
#[cfg(any(target_os = "linux", windows))]
mod graph;
#[cfg(any(target_os = "linux", windows))]
mod kernel;
#[cfg(any(target_os = "linux", windows))]
mod managed;
mod memcpy;
mod parallel_memcpy;
#[cfg(any(target_os = "linux", windows))]
mod peer;
#[cfg(any(target_os = "linux", windows))]
mod pool;
#[cfg(any(target_os = "linux", windows))]
mod queue;
#[cfg(any(target_os = "linux", windows))]
mod spin;
#[cfg(any(target_os = "linux", windows))]
mod staged;
#[cfg(any(target_os = "linux", windows))]
mod stream;
mod threads;
#[cfg(any(target_os = "linux", windows))]
mod unified;

#[cfg(any(target_os = "linux", windows))]
pub use driver::DriverCopy;
#[cfg(any(target_os = "linux", windows))]
pub use graph::RawGraph;
#[cfg(any(target_os = "linux", windows))]
pub use kernel::RawKernel;
#[cfg(any(target_os = "linux", windows))]
pub use managed::PrefetchedCopy;
pub use memcpy::Memcpy;
pub use parallel_memcpy::ParallelMemcpy;
#[cfg(any(target_os = "linux", windows))]
pub use peer::PeerCopy;
#[cfg(any(target_os = "linux", windows))]
pub use pool::RawPool;
#[cfg(any(target_os = "linux", windows))]
pub use queue::{RawEvent, RawQueue};
#[cfg(any(target_os = "linux", windows))]
pub use spin::{SPIN, Spin};
#[cfg(any(target_os = "linux", windows))]
pub use staged::{Staged, StagedForm};
pub(crate) use threads::ReferenceThreads;
#[cfg(any(target_os = "linux", windows))]
pub use unified::{HOST, RawAdvice, SAXPY, Saxpy};

use anyhow::Result;

/// One copy, hand-written for fixed addresses.
pub trait Reference: Send {
    /// Enqueues the copy.
    ///
    /// # Errors
    /// If a driver call fails.
    fn submit(&mut self) -> Result<()>;

    /// Blocks until the copy completes.
    ///
    /// # Errors
    /// If a driver call fails.
    fn finish(&mut self) -> Result<()>;

    /// Runs the copy once and returns its seconds by the device's clock; `None` without such a clock.
    ///
    /// # Errors
    /// If a driver call fails.
    fn timed(&mut self) -> Result<Option<f64>>;
}
