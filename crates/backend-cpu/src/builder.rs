//! How a backend is made: how many workers, and from which size on they share one copy.

use std::{num::NonZero, sync::Arc, thread};

use transload_core::{Error, ErrorKind, Result};

use crate::{CpuBackend, workers::Employment};

/// More threads than this only stand in each other's way at the memory controller.
const DEFAULT_WORKERS: usize = 8;
/// Beyond this a number of workers is a mistake.
const MOST_WORKERS: usize = 1024;
const DEFAULT_PARALLEL_FROM: usize = 4 << 20;

/// Settings of a [`CpuBackend`].
///
/// ```
/// use transload_backend_cpu::CpuBackend;
///
/// let backend = CpuBackend::builder().workers(2).parallel_from(1 << 20).build()?;
/// # Ok::<(), transload_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct CpuBackendBuilder {
    workers: usize,
    parallel_from: usize,
}

impl Default for CpuBackendBuilder {
    fn default() -> Self {
        let workers = thread::available_parallelism().map_or(2, NonZero::get).min(DEFAULT_WORKERS);
        Self { workers, parallel_from: DEFAULT_PARALLEL_FROM }
    }
}

impl CpuBackendBuilder {
    /// Worker threads, 1 to 1024. Without it as many as the machine runs at once, at most 8.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// The size in bytes from which several workers share one operation; 4 MiB without it. `usize::MAX` turns sharing off.
    pub fn parallel_from(mut self, bytes: usize) -> Self {
        self.parallel_from = bytes;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a number of workers that is not 1 to 1024; [`ErrorKind::Device`] where the
    /// system refuses a thread.
    pub fn build(self) -> Result<Arc<CpuBackend>> {
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            let text = format!("{} workers were asked for; valid are 1 to {MOST_WORKERS}", self.workers);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let employment = Arc::new(Employment::new(self.workers, self.parallel_from)?);
        Ok(Arc::new(CpuBackend::with(employment)))
    }
}
