//! Options of a profiler.

use transload_core::OperationSampling;

/// Options of a [`StreamProfiler`](crate::StreamProfiler).
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
