//! A workload over unified memory: launches a kernel on one range after another and waits for each, with different prefetches.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use transload_core::{DeviceId, Fence, MemoryKind, Operation, Pattern, RawBuffer, Timing, submit};
use transload_memory::{
    AutoPrefetcher, CudaDevice, CudaMemoryManager, PredictionLimits, PredictionStatistics,
};
use transload_streams::{CudaKernel, CudaModule, CudaStream, Launch, LaunchConfig, LaunchExecutor};

use super::AccessPattern;
use crate::reference::SPIN;

const SAXPY: &str = include_str!("../../../crates/streams/examples/kernels/saxpy.ptx");

/// How memory is migrated to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefetchMode {
    /// By page faults.
    Nothing,
    /// By hand-written prefetches of the next ranges in the known order.
    Manual,
    /// By predictions of [`AutoPrefetcher`], else by page faults.
    Automatic,
    /// By [`LaunchExecutor`], which prefetches what each launch declares.
    Executor,
    /// By [`LaunchExecutor`] with prediction.
    Predicting,
}

impl PrefetchMode {
    /// All modes.
    pub const ALL: [Self; 5] =
        [Self::Nothing, Self::Manual, Self::Automatic, Self::Executor, Self::Predicting];

    /// Returns the name used in row ids.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Manual => "by-hand",
            Self::Automatic => "automatic",
            Self::Executor => "executor",
            Self::Predicting => "predicting",
        }
    }
}

/// The size of the workload.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchWorkloadSize {
    /// Number of ranges.
    pub ranges: usize,
    /// Bytes of each; a multiple of 4. Multiples of 2 MiB share no block of the driver.
    pub bytes: usize,
    /// How often ranges are used, in repeating patterns.
    pub times: usize,
    /// Additional device time of each use.
    pub busy: Duration,
    /// How many ranges ahead are prefetched.
    pub depth: usize,
    /// Seed of the random order.
    pub seed: u64,
}

/// Memory, kernels and streams of the workload.
#[derive(Debug)]
pub struct PrefetchWorkload {
    device: CudaDevice,
    pattern: AccessPattern,
    size: PrefetchWorkloadSize,
    order: Vec<usize>,
    ranges: Vec<RawBuffer>,
    sum: RawBuffer,
    host: RawBuffer,
    add: CudaKernel,
    spin: CudaKernel,
    stream: CudaStream,
    ahead: CudaStream,
    back: CudaStream,
}

impl PrefetchWorkload {
    /// Allocates and fills the memory.
    ///
    /// # Errors
    /// If the library fails.
    pub fn new(
        device: &CudaDevice,
        memory: &CudaMemoryManager,
        pattern: AccessPattern,
        size: PrefetchWorkloadSize,
    ) -> Result<Self> {
        let ranges: Vec<RawBuffer> = if pattern.has_own_allocations() {
            (0..size.ranges)
                .map(|_| memory.allocate(MemoryKind::Unified, size.bytes))
                .collect::<Result<_, _>>()?
        } else {
            let whole = memory.allocate(MemoryKind::Unified, size.ranges.saturating_mul(size.bytes))?;
            (0..size.ranges)
                .map(|index| whole.slice(index * size.bytes..(index + 1) * size.bytes))
                .collect::<Result<_, _>>()?
        };
        for range in &ranges {
            let mut view = range.write()?;
            for number in view.chunks_exact_mut(4) {
                number.copy_from_slice(&1_f32.to_le_bytes());
            }
        }
        Ok(Self {
            device: device.clone(),
            pattern,
            size,
            order: pattern.order(size.ranges, size.times, size.seed),
            ranges,
            sum: memory.allocate(MemoryKind::Device, size.bytes)?,
            host: memory.allocate(MemoryKind::Pinned, size.bytes)?,
            add: CudaModule::from_ptx(device, SAXPY)?.kernel("transload_saxpy")?,
            spin: CudaModule::from_ptx(device, SPIN)?.kernel("transload_spin")?,
            stream: CudaStream::new(device)?,
            ahead: CudaStream::new(device)?,
            back: CudaStream::new(device)?,
        })
    }

    /// Returns the number of uses in one run.
    #[must_use]
    pub fn uses(&self) -> usize {
        self.order.len()
    }

    /// Runs it once, starting with all memory on the host, and checks the result. Returns the time from the first launch to the
    /// last one's end, and the statistics if the mode predicts.
    ///
    /// # Errors
    /// The library's; a result that is not what the launches add up to.
    pub fn run(&self, mode: PrefetchMode) -> Result<(Duration, Option<PredictionStatistics>)> {
        self.begin_on_the_host()?;
        let limits = PredictionLimits { depth: self.size.depth, ..PredictionLimits::default() };
        let auto = if mode == PrefetchMode::Automatic {
            let queue = Arc::new(CudaStream::new(&self.device)?);
            Some(AutoPrefetcher::new(&self.device, queue, limits)?)
        } else {
            None
        };
        let executor = match mode {
            PrefetchMode::Executor => Some(LaunchExecutor::new(&self.device)?),
            PrefetchMode::Predicting => Some(LaunchExecutor::new(&self.device)?.with_prediction(limits)?),
            _ => None,
        };
        let begun = Instant::now();
        for (at, index) in self.order.iter().enumerate() {
            let range = self.range(*index)?;
            match mode {
                PrefetchMode::Manual => self.prefetch_manually(at)?,
                PrefetchMode::Automatic => {
                    auto.iter().for_each(|auto| _ = auto.observe(&[range]));
                }
                PrefetchMode::Nothing | PrefetchMode::Executor | PrefetchMode::Predicting => {}
            }
            self.use_range(range, executor.as_ref())?.wait()?;
            if self.pattern.evicts() {
                match &executor {
                    Some(executor) => _ = executor.prefetch_back(range)?,
                    None => _ = prefetch(&self.back, range, DeviceId::Cpu)?,
                }
            }
        }
        let took = begun.elapsed();
        let statistics = auto.as_ref().map(AutoPrefetcher::statistics);
        let statistics = statistics.or_else(|| executor.as_ref()?.prediction_statistics());
        self.ranges.iter().try_for_each(RawBuffer::wait_idle)?;
        self.check()?;
        Ok((took, statistics))
    }

    fn range(&self, index: usize) -> Result<&RawBuffer> {
        self.ranges.get(index).context("an order within the ranges")
    }

    fn begin_on_the_host(&self) -> Result<()> {
        for range in &self.ranges {
            drop(prefetch(&self.back, range, DeviceId::Cpu)?);
        }
        let clear = Operation::Fill { dst: &self.sum, pattern: Pattern::U8(0) };
        submit(&self.stream, &clear, Timing::Off)?.wait()?;
        Ok(self.back.synchronize()?)
    }

    /// Prefetches the range `depth` uses ahead; at the beginning all up to it.
    fn prefetch_manually(&self, at: usize) -> Result<()> {
        let first = if at == 0 { 0 } else { at.saturating_add(self.size.depth) };
        for next in first..=at.saturating_add(self.size.depth) {
            let Some(index) = self.order.get(next) else { return Ok(()) };
            drop(prefetch(&self.ahead, self.range(*index)?, self.device.id())?);
        }
        Ok(())
    }

    /// Adds the range's numbers to the sum and keeps the device busy.
    fn use_range(&self, range: &RawBuffer, executor: Option<&LaunchExecutor>) -> Result<Fence> {
        let count = (range.len() / 4) as u64;
        let launch = self.add.launch(LaunchConfig::for_elements(count, 256)).arg(1.0_f32);
        let launch: Launch<'_> = launch.reads(range).reads_writes(&self.sum).arg(count);
        let added = match executor {
            // SAFETY: the kernel takes these four parameters and touches so many numbers of both buffers.
            Some(executor) => unsafe { executor.enqueue(launch, &self.stream) },
            // SAFETY: as above.
            None => unsafe { launch.enqueue(&self.stream) },
        }?;
        let nanoseconds = u64::try_from(self.size.busy.as_nanos()).unwrap_or(u64::MAX);
        if nanoseconds == 0 {
            return Ok(added);
        }
        let spin = self.spin.launch(LaunchConfig::linear(1, 1)).arg(nanoseconds).arg(0_u64);
        // SAFETY: the kernel takes these two parameters; with an address of 0 it stores nothing.
        Ok(unsafe { spin.enqueue(&self.stream) }?)
    }

    fn check(&self) -> Result<()> {
        self.stream.copy_to_host_async(&self.sum, &self.host).wait()?;
        let expected = (self.order.len() as f32).to_le_bytes();
        let view = self.host.read()?;
        ensure!(
            view.chunks_exact(4).all(|number| number == expected),
            "the sum is not that of {} uses",
            self.uses()
        );
        Ok(())
    }
}

fn prefetch(stream: &CudaStream, range: &RawBuffer, to: DeviceId) -> Result<Fence> {
    Ok(submit(stream, &Operation::Prefetch { buffer: range, to }, Timing::Off)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda;

    #[test]
    fn every_pattern_and_mode_adds_up_with_expected_predictions() {
        let device = CudaDevice::new(cuda::simulate(11).unwrap()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        for pattern in AccessPattern::ALL {
            let size = PrefetchWorkloadSize {
                ranges: 24,
                bytes: 1 << 16,
                times: 5,
                busy: Duration::from_micros(1),
                depth: 3,
                seed: 5,
            };
            let workload = PrefetchWorkload::new(&device, &memory, pattern, size).unwrap();
            for mode in PrefetchMode::ALL {
                let (_took, predicted) = workload.run(mode).unwrap();
                let Some(predicted) = predicted else {
                    assert!(!matches!(mode, PrefetchMode::Automatic | PrefetchMode::Predicting));
                    continue;
                };
                let uses = workload.uses() as u64;
                match pattern {
                    AccessPattern::Sequential => {
                        assert_eq!((predicted.hits, predicted.misses), (uses - 3, 0))
                    }
                    AccessPattern::Strided => assert_eq!((predicted.hits, predicted.misses), (uses - 3, 0)),
                    AccessPattern::Steps => {
                        assert!(predicted.hits >= uses / 2 && predicted.misses == 0, "{predicted:?}")
                    }
                    AccessPattern::Random => assert!(predicted.prefetches <= uses / 10, "{predicted:?}"),
                }
            }
        }
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    }
}
