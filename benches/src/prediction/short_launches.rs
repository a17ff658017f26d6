//! Short launches enqueued one after another over unified memory that is on the device, so that nothing needs a prefetch.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use transload_core::{Access, MemoryKind, Operation, Pattern, RawBuffer, Timing, submit};
use transload_memory::{
    AutoPrefetcher, CudaDevice, CudaMemoryManager, PredictionLimits, PredictionStatistics,
};
use transload_streams::{CudaKernel, CudaModule, CudaStream, LaunchConfig, LaunchExecutor};

use super::{AccessPattern, PrefetchMode};

const SAXPY: &str = include_str!("../../../crates/streams/examples/kernels/saxpy.ptx");

/// The order in which chunks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchOrder {
    /// The same chunk every time.
    Same,
    /// All chunks in order, repeatedly.
    Sequential,
    /// Random.
    Random,
}

impl LaunchOrder {
    /// Every order.
    pub const ALL: [Self; 3] = [Self::Same, Self::Sequential, Self::Random];

    /// Returns the name used in row ids.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }

    fn of(self, chunks: usize, launches: usize) -> Vec<usize> {
        let mut order = match self {
            Self::Same => vec![0; launches],
            Self::Sequential => (0..launches).map(|at| at % chunks).collect(),
            Self::Random => AccessPattern::Random.order(chunks, launches.div_ceil(chunks), 0x5EED),
        };
        order.truncate(launches);
        order
    }
}

/// The size of the workload.
#[derive(Clone, Copy, Debug)]
pub struct ShortLaunchesSize {
    /// Chunks of each buffer, at least 1.
    pub chunks: usize,
    /// Bytes of each; a multiple of 4.
    pub bytes: usize,
    /// Launches of one run.
    pub launches: usize,
    /// Ranges of unified memory that a launch declares: 1, or 3 of different buffers.
    pub ranges: usize,
}

/// Memory, kernel and streams of the workload, and its prefetcher and executors.
#[derive(Debug)]
pub struct ShortLaunches {
    size: ShortLaunchesSize,
    order: Vec<usize>,
    /// Chunks that are read, added to (if unified), and only declared.
    chunks: [Vec<RawBuffer>; 3],
    /// The sums: one chunk in device memory, or all chunks in unified memory.
    sum: RawBuffer,
    host: RawBuffer,
    kernel: CudaKernel,
    stream: CudaStream,
    auto: AutoPrefetcher,
    executor: LaunchExecutor,
    predicting: LaunchExecutor,
}

impl ShortLaunches {
    /// The ways that make sense where nothing has to be moved.
    pub const MODES: [PrefetchMode; 4] =
        [PrefetchMode::Nothing, PrefetchMode::Automatic, PrefetchMode::Executor, PrefetchMode::Predicting];

    /// Allocates and fills the memory and prefetches it to the device.
    ///
    /// # Errors
    /// If the library fails.
    pub fn new(
        device: &CudaDevice,
        memory: &CudaMemoryManager,
        order: LaunchOrder,
        size: ShortLaunchesSize,
    ) -> Result<Self> {
        let stream = CudaStream::new(device)?;
        let unified = || -> Result<(RawBuffer, Vec<RawBuffer>)> {
            let whole = memory.allocate(MemoryKind::Unified, size.chunks.saturating_mul(size.bytes))?;
            for number in whole.write()?.chunks_exact_mut(4) {
                number.copy_from_slice(&1_f32.to_le_bytes());
            }
            let there = Operation::Prefetch { buffer: &whole, to: device.id() };
            submit(&stream, &there, Timing::Off)?.wait()?;
            let chunk = |at: usize| whole.slice(at * size.bytes..(at + 1) * size.bytes);
            let chunks = (0..size.chunks).map(chunk).collect::<Result<_, _>>()?;
            Ok((whole, chunks))
        };
        let (_, read) = unified()?;
        let (sum, added, declared) = if size.ranges == 1 {
            (memory.allocate(MemoryKind::Device, size.bytes)?, Vec::new(), Vec::new())
        } else {
            let (sum, added) = unified()?;
            (sum, added, unified()?.1)
        };
        let limits = PredictionLimits::default();
        Ok(Self {
            size,
            order: order.of(size.chunks, size.launches),
            chunks: [read, added, declared],
            host: memory.allocate(MemoryKind::Pinned, sum.len())?,
            sum,
            kernel: CudaModule::from_ptx(device, SAXPY)?.kernel("transload_saxpy")?,
            auto: AutoPrefetcher::new(device, Arc::new(CudaStream::new(device)?), limits)?,
            executor: LaunchExecutor::new(device)?,
            predicting: LaunchExecutor::new(device)?.with_prediction(limits)?,
            stream,
        })
    }

    /// Runs it once after two uncounted rounds and checks the result. Returns the time from the first launch until all complete.
    ///
    /// # Errors
    /// The library's; a result that is not what the launches add up to.
    pub fn run(&self, mode: PrefetchMode) -> Result<Duration> {
        let clear = Operation::Fill { dst: &self.sum, pattern: Pattern::U8(0) };
        submit(&self.stream, &clear, Timing::Off)?.wait()?;
        let before: Vec<usize> = (0..self.size.chunks).chain(0..self.size.chunks).collect();
        self.launches(mode, &before)?;
        self.stream.synchronize()?;
        let begun = Instant::now();
        self.launches(mode, &self.order)?;
        self.stream.synchronize()?;
        let took = begun.elapsed();
        self.check()?;
        Ok(took)
    }

    /// Returns the prediction statistics so far, if the mode predicts.
    #[must_use]
    pub fn predicted(&self, mode: PrefetchMode) -> Option<PredictionStatistics> {
        match mode {
            PrefetchMode::Automatic => Some(self.auto.statistics()),
            PrefetchMode::Predicting => self.predicting.prediction_statistics(),
            PrefetchMode::Nothing | PrefetchMode::Manual | PrefetchMode::Executor => None,
        }
    }

    fn launches(&self, mode: PrefetchMode, order: &[usize]) -> Result<()> {
        let executor = match mode {
            PrefetchMode::Executor => Some(&self.executor),
            PrefetchMode::Predicting => Some(&self.predicting),
            PrefetchMode::Nothing | PrefetchMode::Manual | PrefetchMode::Automatic => None,
        };
        let auto = (mode == PrefetchMode::Automatic).then_some(&self.auto);
        let count = (self.size.bytes / 4) as u64;
        let config = LaunchConfig::for_elements(count, 256);
        let [read, added, declared] = &self.chunks;
        for at in order {
            let x = read.get(*at).context("an order within the chunks")?;
            let besides = added.get(*at).zip(declared.get(*at));
            let launch = self.kernel.launch(config).arg(1.0_f32).reads(x);
            let launch = match besides {
                Some((y, z)) => {
                    auto.map(|auto| auto.observe(&[x, y, z]));
                    launch.reads_writes(y).declares(z, Access::Read)
                }
                None => {
                    auto.map(|auto| auto.observe(&[x]));
                    launch.reads_writes(&self.sum)
                }
            };
            let launch = launch.arg(count);
            // SAFETY: the kernel takes a float, two arrays of so many floats, and their number.
            unsafe {
                match executor {
                    Some(executor) => executor.enqueue(launch, &self.stream),
                    None => launch.enqueue(&self.stream),
                }
            }?;
        }
        Ok(())
    }

    /// Checks the sums: each launch, and two rounds before, added ones.
    fn check(&self) -> Result<()> {
        self.stream.copy_to_host_async(&self.sum, &self.host).wait()?;
        let mut expected = vec![2.0_f32; self.size.chunks];
        for at in &self.order {
            *expected.get_mut(*at).context("an order within the chunks")? += 1.0;
        }
        if self.size.ranges == 1 {
            expected = vec![expected.iter().sum()];
        }
        let view = self.host.read()?;
        for (chunk, expected) in view.chunks_exact(self.size.bytes.max(1)).zip(expected) {
            let right = chunk.chunks_exact(4).all(|number| number == expected.to_le_bytes());
            ensure!(right, "a sum is not {expected}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda;

    #[test]
    fn every_order_and_mode_adds_up_and_predictions_are_skipped() {
        let device = CudaDevice::new(cuda::simulate(12).unwrap()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        for order in LaunchOrder::ALL {
            for ranges in [1, 3] {
                let size = ShortLaunchesSize { chunks: 8, bytes: 4096, launches: 50, ranges };
                let short = ShortLaunches::new(&device, &memory, order, size).unwrap();
                for mode in ShortLaunches::MODES {
                    let _took = short.run(mode).unwrap();
                    let before = short.predicted(mode);
                    let _took = short.run(mode).unwrap();
                    let Some((before, after)) = before.zip(short.predicted(mode)) else { continue };
                    let launches = (50 * ranges) as u64;
                    assert!(after.skipped - before.skipped >= launches, "{order:?} {mode:?}: {after:?}");
                }
            }
        }
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    }
}
