//! Pool settings and their defaults for a device.

use std::{ops::RangeInclusive, time::Duration};

use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::attribute;
use transload_memory::{CudaDevice, lift};

use super::{AdvancedStreamPool, AllocationStrategy, WorkloadSplit, shard::MAX_STREAMS};

/// Default time after the last growth before a group shrinks.
const QUIET: Duration = Duration::from_secs(2);

/// Settings of an [`AdvancedStreamPool`].
///
/// Defaults come from the device. Per priority: for kernels, one stream per 16 multiprocessors, 2 to 8 (kernels that fill
/// the device gain nothing from more); for copies, two per copy engine and two to prepare the next, 4 to 8 (so that threads
/// that copy small buffers have one each); two for mixed work and one for coordination. The minimum is one stream. An H200
/// (132 multiprocessors, 3 engines) has up to 8 + 8 + 2 + 1.
#[derive(Clone, Debug)]
#[must_use = "`build` creates the pool"]
pub struct PoolBuilder {
    device: CudaDevice,
    strategy: AllocationStrategy,
    streams: Option<RangeInclusive<usize>>,
    split: Option<WorkloadSplit>,
    quiet: Duration,
    device_waits: bool,
}

impl PoolBuilder {
    pub(crate) fn new(device: &CudaDevice) -> Self {
        let strategy = AllocationStrategy::default();
        Self {
            device: device.clone(),
            strategy,
            streams: None,
            split: None,
            quiet: QUIET,
            device_waits: true,
        }
    }

    /// Sets the strategy; default [`AllocationStrategy::Workload`].
    pub fn strategy(mut self, strategy: AllocationStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the minimum and maximum number of streams per priority. The maximum is 1 to 64: the 192 streams of three
    /// priorities exceed the 128 kernels that a device runs concurrently, and a lease chooses by one word of bits.
    pub fn streams(mut self, bounds: RangeInclusive<usize>) -> Self {
        self.streams = Some(bounds);
        self
    }

    /// Sets the streams per workload under [`AllocationStrategy::Workload`]; default [`WorkloadSplit::of`] the maximum.
    pub fn split(mut self, split: WorkloadSplit) -> Self {
        self.split = Some(split);
        self
    }

    /// Sets how long after its last growth a group retires idle streams, at a lease; default 2 s.
    pub fn quiet(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets whether the streams wait for host work on the device; default `true`. See
    /// [`CudaStream::set_device_waits`](crate::CudaStream::set_device_waits).
    pub fn device_waits(mut self, device_waits: bool) -> Self {
        self.device_waits = device_waits;
        self
    }

    /// Creates the pool, without streams or a context yet.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid bounds or an invalid split, with the valid ones; the driver's.
    pub fn build(self) -> Result<AdvancedStreamPool> {
        let Self { device, strategy, streams, split, quiet, device_waits } = self;
        let (least, most, split) = match (streams, split) {
            (Some(bounds), split) => {
                let (least, most) = bounds.into_inner();
                if !(1..=MAX_STREAMS).contains(&most) || least > most {
                    let text = format!(
                        "a pool of {least} to {most} streams per priority; valid are 1 to {MAX_STREAMS}, with the minimum first"
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
                (least, most, split.unwrap_or_else(|| WorkloadSplit::of(most)))
            }
            (None, Some(split)) => (1, split.total().clamp(1, MAX_STREAMS), split),
            (None, None) => {
                let split = suggested(&device)?;
                (1, split.total(), split)
            }
        };
        if split.total() == 0 || split.total() > most {
            let text = format!(
                "a split of {} streams ({split}); valid are 1 to the {most} of a priority",
                split.total()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(AdvancedStreamPool::over(device, strategy, least..=most, split, (quiet, device_waits)))
    }
}

/// Returns the default split for a device.
fn suggested(device: &CudaDevice) -> Result<WorkloadSplit> {
    let attribute_of = |number| -> Result<usize> {
        let value = device.driver().attribute(number).map_err(lift)?;
        Ok(usize::try_from(value).unwrap_or(0))
    };
    let multiprocessors: usize = attribute_of(attribute::MULTIPROCESSOR_COUNT)?;
    let engines: usize = attribute_of(attribute::ASYNC_ENGINE_COUNT)?;
    Ok(WorkloadSplit {
        compute: (multiprocessors / 16).clamp(2, 8),
        memory: engines.saturating_mul(2).saturating_add(2).clamp(4, 8),
        mixed: 2,
        coordination: 1,
    })
}
