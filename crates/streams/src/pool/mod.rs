//! Streams of one device to be leased: a group for each priority, in each streams for each workload.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Result, StreamPriority, WorkloadType};
use transload_memory::CudaDevice;

use crate::{CudaStream, submit::kernels::Kernels};

mod builder;
mod optimize;
mod priority_group;
mod ready;
mod shard;
mod slots;
mod strategy;

pub use builder::PoolBuilder;

pub use optimize::{Optimization, WorkloadSummary};
pub use shard::StreamLease;
pub use strategy::{AllocationStrategy, WorkloadSplit};

use optimize::Completions;
use priority_group::{Choice, PriorityGroup};

/// Every priority, in the order of its number.
const PRIORITIES: [StreamPriority; 3] = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low];

/// Streams of one device, made when they are needed and given up where it is quiet.
///
/// A lease is an atomic addition, its end another, on memory that only the calling thread writes, as long as there are no more
/// than 16. It calls the driver only to make a stream, and takes a lock only then and where the thread has not seen the pool's
/// last change: where all streams that it may use are leased or have work outstanding and the bounds allow one more. Once they
/// do not, leases share streams. All methods may be called from any thread.
///
/// ```
#[doc = include_str!("../../examples/pool.rs")]
/// ```
pub struct AdvancedStreamPool {
    device: CudaDevice,
    strategy: AtomicU8,
    groups: [PriorityGroup; 3],
    bounds: RangeInclusive<usize>,
    /// The split that was set last; held while strategy and split change.
    split: Mutex<WorkloadSplit>,
    completions: Completions,
    kernels: OnceLock<Arc<Kernels>>,
}

impl AdvancedStreamPool {
    /// A pool with what the device suggests: see [`PoolBuilder`].
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Self::builder(device).build()
    }

    /// A pool of up to `streams` streams for each priority, shared out by a strategy.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 and for more than 64 streams.
    pub fn new_with_strategy(
        device: &CudaDevice,
        streams: usize,
        strategy: AllocationStrategy,
    ) -> Result<Self> {
        Self::builder(device).strategy(strategy).streams(streams.min(1)..=streams).build()
    }

    /// Everything that can be set.
    pub fn builder(device: &CudaDevice) -> PoolBuilder {
        PoolBuilder::new(device)
    }

    fn over(
        device: CudaDevice,
        strategy: AllocationStrategy,
        bounds: RangeInclusive<usize>,
        split: WorkloadSplit,
        quiet: Duration,
    ) -> Self {
        let groups =
            PRIORITIES.map(|priority| PriorityGroup::new(priority, *bounds.start(), *bounds.end(), quiet));
        let pool = Self {
            device,
            strategy: AtomicU8::new(strategy as u8),
            groups,
            bounds,
            split: Mutex::new(split),
            completions: Completions::default(),
            kernels: OnceLock::new(),
        };
        pool.configure(strategy, split);
        pool
    }

    /// Leases a stream.
    ///
    /// # Errors
    /// The driver's, where a first stream has to be made and cannot.
    #[inline]
    pub fn lease(&self, priority: StreamPriority, workload: WorkloadType) -> Result<StreamLease> {
        let choice = match self.strategy() {
            AllocationStrategy::RoundRobin => Choice::RoundRobin,
            _ => Choice::LeastLoaded(self.completions.weights()),
        };
        self.groups[priority as usize].lease(&self.device, workload, choice).map(StreamLease::new)
    }

    /// Leases a stream for a workload at the priority that the strategy gives it: `Normal`, but `High` for `Coordination` under
    /// [`AllocationStrategy::Priority`].
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn get_stream_for_workload(&self, workload: WorkloadType) -> Result<StreamLease> {
        let priority = match (self.strategy(), workload) {
            (AllocationStrategy::Priority, WorkloadType::Coordination) => StreamPriority::High,
            _ => StreamPriority::Normal,
        };
        self.lease(priority, workload)
    }

    /// Leases a stream of a priority, for mixed work.
    ///
    /// # Errors
    /// As for [`lease`](Self::lease).
    pub fn get_priority_stream(&self, priority: StreamPriority) -> Result<StreamLease> {
        self.lease(priority, WorkloadType::Mixed)
    }

    /// How streams are chosen just now.
    #[inline]
    #[must_use]
    pub fn strategy(&self) -> AllocationStrategy {
        AllocationStrategy::from_index(self.strategy.load(Ordering::Relaxed))
    }

    /// How the streams of a priority are shared out where the strategy is [`AllocationStrategy::Workload`].
    #[must_use]
    pub fn split(&self) -> WorkloadSplit {
        *self.split.lock()
    }

    /// The bounds of the number of streams of each priority.
    #[must_use]
    pub fn bounds(&self) -> RangeInclusive<usize> {
        self.bounds.clone()
    }

    /// Chooses by another strategy from now on. Leases that are held keep their streams.
    pub fn set_strategy(&self, strategy: AllocationStrategy) {
        let split = *self.split.lock();
        self.configure(strategy, split);
    }

    /// As if built so; the split has been checked.
    fn configure(&self, strategy: AllocationStrategy, split: WorkloadSplit) {
        let mut kept = self.split.lock();
        for (group, priority) in self.groups.iter().zip(PRIORITIES) {
            group.allow(strategy::places(strategy, split, *self.bounds.end(), priority));
        }
        self.strategy.store(strategy as u8, Ordering::Relaxed);
        *kept = split;
    }

    /// Gives up every stream that is idle and not leased, down to the least number of each priority; answers how many. Asks
    /// the driver. A busy pool also gives up one stream at a time at a lease, when it has not grown for a while.
    pub fn trim(&self) -> usize {
        self.groups.iter().map(PriorityGroup::trim).sum()
    }

    /// How many streams of a priority there are.
    #[must_use]
    pub fn streams(&self, priority: StreamPriority) -> usize {
        self.groups[priority as usize].streams()
    }

    /// How many leases are held, those that are being had or given back included.
    #[must_use]
    pub fn leases(&self) -> usize {
        let mut leases = 0_usize;
        for group in &self.groups {
            group.look(|_, _, held| leases += held);
        }
        leases
    }

    /// Operations in flight on all streams, as far as is known without asking the driver.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        let mut outstanding = 0_u64;
        for group in &self.groups {
            group.look(|_, stream, _| {
                outstanding = outstanding.saturating_add(transload_core::Queue::outstanding(stream));
            });
        }
        outstanding
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device.id()
    }

    /// Blocks until every stream has done what is enqueued on it.
    ///
    /// # Errors
    /// The first error of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let mut streams: Vec<CudaStream> = Vec::new();
        for group in &self.groups {
            group.look(|_, stream, _| streams.push(CudaStream::clone(stream)));
        }
        let mut outcome = Ok(());
        // Every stream is waited for, also after an error.
        for stream in &streams {
            outcome = outcome.and(stream.synchronize());
        }
        outcome
    }

    /// Loads what [`CopyInPlace`](transload_core::Operation::CopyInPlace) and fills with patterns of 8 and 16 bytes need, unless
    /// it is loaded already: the first time takes milliseconds, which nobody should spend who holds claims. It stays loaded
    /// while the pool lives.
    ///
    /// # Errors
    /// `Unsupported` where the driver does not take the kernel; the driver's.
    pub fn prepare_in_place(&self) -> Result<()> {
        if self.kernels.get().is_none() {
            let kernels = Kernels::of(self.device.context()?)?;
            // Another thread may have been first: the same kernels, or others that do the same.
            let _first = self.kernels.set(kernels);
        }
        Ok(())
    }

    /// That an operation of this workload took so long, for [`average_workload_time`](Self::average_workload_time), for
    /// [`optimize_configuration`](Self::optimize_configuration), and for weighing what is outstanding on a stream. Keeps the
    /// last 256 of each workload.
    pub fn record_workload_completion(&self, workload: WorkloadType, took: Duration) {
        self.completions.record(workload, took);
    }

    /// The average over what was recorded and is kept; `None` where nothing was.
    #[must_use]
    pub fn average_workload_time(&self, workload: WorkloadType) -> Option<Duration> {
        self.completions.average(workload)
    }
}

impl fmt::Debug for AdvancedStreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdvancedStreamPool")
            .field("device", &self.device.id())
            .field("strategy", &self.strategy())
            .field("bounds", &self.bounds)
            .field("streams", &PRIORITIES.map(|priority| self.streams(priority)))
            .field("leases", &self.leases())
            .finish_non_exhaustive()
    }
}
