//! Unified buffers on a driver that fails.

mod failures;
mod retries;
