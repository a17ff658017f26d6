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
/// What is not set comes from the device. For each priority: streams for kernels, one for 16 multiprocessors, 2 to 8 (kernels
/// that fill the device gain nothing from more); for copies, two for each copy engine and two to prepare the next, 4 to 8
/// (each thread that copies small buffers finds one of its own); two for mixed work and one for coordination. At least one is
/// kept. An H200 (132 multiprocessors, 3 engines) has up to 8 + 8 + 2 + 1.
#[derive(Clone, Debug)]
#[must_use = "a pool exists only once it is built"]
pub struct PoolBuilder {
    device: CudaDevice,
    strategy: AllocationStrategy,
    streams: Option<RangeInclusive<usize>>,
    split: Option<WorkloadSplit>,
    quiet: Duration,
}

impl PoolBuilder {
    pub(crate) fn new(device: &CudaDevice) -> Self {
        let strategy = AllocationStrategy::default();
        Self { device: device.clone(), strategy, streams: None, split: None, quiet: QUIET }
    }

    /// Sets the strategy; default [`AllocationStrategy::Workload`].
    pub fn strategy(mut self, strategy: AllocationStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the minimum and maximum number of streams per priority, up to 64.
    pub fn streams(mut self, bounds: RangeInclusive<usize>) -> Self {
        self.streams = Some(bounds);
        self
    }

    /// How many of them each workload has under [`AllocationStrategy::Workload`]. By default [`WorkloadSplit::of`] the most.
    pub fn split(mut self, split: WorkloadSplit) -> Self {
        self.split = Some(split);
        self
    }

    /// Sets how long after its last growth a group retires idle streams, at a lease; default 2 s.
    pub fn quiet(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// Creates the pool, without streams or a context yet.
    ///
    /// # Errors
    /// `InvalidArgument` for bounds or a split that are not possible, naming those that are; the driver's.
    pub fn build(self) -> Result<AdvancedStreamPool> {
        let Self { device, strategy, streams, split, quiet } = self;
        let (least, most, split) = match (streams, split) {
            (Some(bounds), split) => {
                let most = *bounds.end();
                (*bounds.start(), most, split.unwrap_or_else(|| WorkloadSplit::of(most.min(MAX_STREAMS))))
            }
            (None, Some(split)) => (1, split.total(), split),
            (None, None) => {
                let split = suggested(&device)?;
                (1, split.total(), split)
            }
        };
        if most == 0 || most > MAX_STREAMS || least > most {
            let text = format!(
                "a pool of {least} to {most} streams for each priority is not possible: valid are 1 to {MAX_STREAMS}"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if split.total() == 0 || split.total() > most {
            let text = format!(
                "a split of {} streams ({split}) is not possible: valid are 1 to the {most} of a priority",
                split.total()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(AdvancedStreamPool::over(device, strategy, least..=most, split, quiet))
    }
}

/// Returns the default split for a device.
fn suggested(device: &CudaDevice) -> Result<WorkloadSplit> {
    let ask = |number| -> Result<usize> {
        let value = device.driver().attribute(number).map_err(lift)?;
        Ok(usize::try_from(value).unwrap_or(0))
    };
    let multiprocessors: usize = ask(attribute::MULTIPROCESSOR_COUNT)?;
    let engines: usize = ask(attribute::ASYNC_ENGINE_COUNT)?;
    Ok(WorkloadSplit {
        compute: (multiprocessors / 16).clamp(2, 8),
        memory: engines.saturating_mul(2).saturating_add(2).clamp(4, 8),
        mixed: 2,
        coordination: 1,
    })
}
