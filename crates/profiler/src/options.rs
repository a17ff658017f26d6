//! Options of a profiler.

use transload_core::OperationSampling;

/// Options of a [`StreamProfiler`](crate::StreamProfiler).
///
/// With the default capacity a profiler takes at most 64 MiB, however long it runs. 256 streams have times of their own; further ones, and those
/// that are gone, are reported as `others`, one for each device and priority. All distributions together take at most 16 MiB: each of 24 KiB up to a second and 41 KiB up to a
/// day. A stream has one of its waits and one of its times for each kind of operation, and with records of engines one of its exact spans; a path has five for each method and class of size. Times
/// whose distribution has no room have none from then on: [`TimesReport::percentiles`](crate::TimesReport::percentiles) is `None`, and their number and
/// sum are complete.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ProfilerOptions {
    pub(crate) sampling: OperationSampling,
    pub(crate) capacity: usize,
}

impl ProfilerOptions {
    /// Times all operations from 4 MiB on and one in 64 below, and keeps up to 16,384 operations whose end is not known yet.
    pub fn new() -> Self {
        Self { sampling: OperationSampling::default(), capacity: 1 << 14 }
    }

    /// Sets which operations are timed; each takes two events. The others are counted.
    pub fn sampling(mut self, sampling: OperationSampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets how many timed operations may be outstanding, 64 to 1,048,576; about 1.1 KiB each, with records of engines and a trace 2 KiB. Those beyond it are counted as lost.
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
