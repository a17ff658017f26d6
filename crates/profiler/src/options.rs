//! Options of a profiler.

use transload_core::OperationSampling;

/// Options of a [`StreamProfiler`](crate::StreamProfiler).
///
/// Its memory does not grow with time. 256 streams have times of their own; further ones, and those that are gone, are reported as `others`, one
/// for each device and priority. For each kind of operation a stream has a distribution of its waits, of its times and, with records of engines, of its exact spans, each
/// of 24 KiB up to a second and 41 KiB up to a day. So 256 streams with copies and kernels have 24 MiB; with all nine kinds and records, and times of
/// a day, 277 MiB.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ProfilerOptions {
    pub(crate) sampling: OperationSampling,
    pub(crate) capacity: usize,
}

impl ProfilerOptions {
    /// Times all operations from 4 MiB on and one in 64 below, and keeps up to 65,536 operations whose end is not known yet.
    pub fn new() -> Self {
        Self { sampling: OperationSampling::default(), capacity: 1 << 16 }
    }

    /// Sets which operations are timed; each takes two events. The others are counted.
    pub fn sampling(mut self, sampling: OperationSampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets how many timed operations may be outstanding, 64 to 1,048,576; about 300 bytes each. Those beyond it are counted as lost.
    pub fn capacity(mut self, operations: usize) -> Self {
        self.capacity = operations.clamp(64, 1 << 20);
        self
    }
}

impl Default for ProfilerOptions {
    fn default() -> Self {
        Self::new()
    }
}
