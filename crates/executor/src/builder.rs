//! How an executor is made.

use std::{num::NonZero, thread};

use transload_core::{Error, ErrorKind, Result};

use crate::Executor;

/// More workers than this did not make anything faster: 8 saturate a PCIe 5 link, 14 to 16 the first touch of fresh memory
/// and the reading of files.
const DEFAULT: usize = 16;
/// Beyond this a number of threads is a mistake.
const MOST: usize = 1024;

/// Settings of an [`Executor`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct ExecutorBuilder {
    threads: usize,
}

impl Default for ExecutorBuilder {
    fn default() -> Self {
        Self { threads: default_threads() }
    }
}

/// Returns the number of workers of an executor with default settings: the processors that the system offers, at most 16.
pub(crate) fn default_threads() -> usize {
    thread::available_parallelism().map_or(2, NonZero::get).min(DEFAULT)
}

impl ExecutorBuilder {
    /// Sets the largest number of workers, 1 to 1024. The default is the number of processors, at most 16. Threads for
    /// blocking calls are not among them.
    pub fn threads(mut self, most: usize) -> Self {
        self.threads = most;
        self
    }

    /// Makes the executor. No thread is started yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a number of threads that is not 1 to 1024.
    pub fn build(self) -> Result<Executor> {
        if !(1..=MOST).contains(&self.threads) {
            let text = format!("{} threads requested; valid are 1 to {MOST}", self.threads);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Executor::with_threads(self.threads))
    }
}
