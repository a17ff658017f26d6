//! The same movement by hand, without the library: what every row is compared with.

#[cfg(any(target_os = "linux", windows))]
mod driver;
mod memcpy;

#[cfg(any(target_os = "linux", windows))]
pub use driver::DriverCopy;
pub use memcpy::Memcpy;

use anyhow::Result;

/// One movement, written as well as it can be by hand for exactly these addresses.
pub trait ByHand: Send {
    /// Enqueues it.
    ///
    /// # Errors
    /// The driver's.
    fn submit(&mut self) -> Result<()>;

    /// Blocks until it is done.
    ///
    /// # Errors
    /// The driver's.
    fn finish(&mut self) -> Result<()>;

    /// Does it once and answers how many seconds it took by the device's clock; `None` where there is none.
    ///
    /// # Errors
    /// The driver's.
    fn timed(&mut self) -> Result<Option<f64>>;
}
