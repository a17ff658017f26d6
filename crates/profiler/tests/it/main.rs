//! What the profiler promises, on the host's queues and on CUDA's: the software driver, and a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

#[cfg(any(target_os = "linux", windows))]
mod advice;
#[cfg(any(target_os = "linux", windows))]
mod cuda;
#[cfg(any(target_os = "linux", windows))]
mod drawn;
#[cfg(any(target_os = "linux", windows))]
mod engines;
#[cfg(any(target_os = "linux", windows))]
#[path = "../trace/fields.rs"]
mod fields;
mod flood;
mod full_disk;
mod host;
#[cfg(any(target_os = "linux", windows))]
mod idle_link;
#[cfg(feature = "prometheus")]
mod metrics;
// A library that is compiled for this machine.
#[cfg(all(feature = "nvtx", target_os = "linux", target_arch = "x86_64"))]
mod nvtx;
#[cfg(any(target_os = "linux", windows))]
#[path = "../trace/packets.rs"]
#[allow(dead_code, reason = "shared with the tests of traces")]
mod packets;
#[cfg(any(target_os = "linux", windows))]
mod truth;
#[cfg(any(target_os = "linux", windows))]
mod waits;

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use transload_core::OperationSampling;
use transload_profiler::{ProfilerOptions, StreamProfiler};

/// A profiler that times every operation.
fn timing_all() -> StreamProfiler {
    StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL))
}

/// A file in memory.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// Returns the slices of a Chrome trace.
    fn slices(&self) -> Vec<serde_json::Value> {
        let text = self.text();
        let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        events.into_iter().filter(|event| event["ph"] == "X").collect()
    }
}
