//! A pool of leased streams of one device, grouped by priority and workload.

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

/// All priorities by index.
const PRIORITIES: [StreamPriority; 3] = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low];

/// A pool of streams of one device, created on demand and retired when idle.
///
/// With at most 16 threads, a lease is one atomic addition, and its end another, on memory that only the calling
/// thread writes. It calls the driver only to create a stream, or to destroy one that has been idle for some seconds, and locks only then and after a change of the pool: if
/// all usable streams are leased or busy and the bounds allow another. Beyond the bounds, leases share streams. All
/// methods may be called from any thread.
///
/// ```
#[doc = include_str!("../../examples/pool.rs")]
/// ```
pub struct AdvancedStreamPool {
    device: CudaDevice,
    strategy: AtomicU8,
    groups: [PriorityGroup; 3],
    bounds: RangeInclusive<usize>,
    /// The current split; locked while strategy and split change.
    split: Mutex<WorkloadSplit>,
    completions: Completions,
    kernels: OnceLock<Arc<Kernels>>,
}

impl AdvancedStreamPool {
    /// Creates a pool with defaults for the device: see [`PoolBuilder`].
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Self::builder(device).build()
    }

    /// Creates a pool of up to `streams` streams per priority, 1 to 64, with a strategy.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 streams, or more than 64; see [`PoolBuilder::streams`].
    pub fn new_with_strategy(
        device: &CudaDevice,
        streams: usize,
        strategy: AllocationStrategy,
    ) -> Result<Self> {
        Self::builder(device).strategy(strategy).streams(streams.min(1)..=streams).build()
    }

    /// Returns a builder.
    pub fn builder(device: &CudaDevice) -> PoolBuilder {
        PoolBuilder::new(device)
    }

    fn over(
        device: CudaDevice,
        strategy: AllocationStrategy,
        bounds: RangeInclusive<usize>,
        split: WorkloadSplit,
        settings: (Duration, bool),
    ) -> Self {
        let groups =
            PRIORITIES.map(|priority| PriorityGroup::new(priority, *bounds.start(), *bounds.end(), settings));
        let pool = Self {
            device,
            strategy: AtomicU8::new(strategy as u8),
            groups,
            bounds,
            split: Mutex::new(split),
            completions: Completions::default(),
            kernels: OnceLock::new(),
        };
        pool.configure(strategy, Some(split));
        pool
    }

    /// Leases a stream.
    ///
    /// # Errors
    /// The driver's, if the first stream cannot be created.
    #[inline]
    pub fn lease(&self, priority: StreamPriority, workload: WorkloadType) -> Result<StreamLease> {
        self.groups[priority as usize].lease(&self.device, workload, self.choice()).map(StreamLease::new)
    }

    /// Like [`lease`](Self::lease), but neither creates nor destroys a stream, so that it calls no driver: `None` if `lease` would create
    /// one. For tasks.
    #[inline]
    #[must_use]
    pub fn lease_existing(&self, priority: StreamPriority, workload: WorkloadType) -> Option<StreamLease> {
        self.groups[priority as usize].lease_existing(workload, self.choice()).map(StreamLease::new)
    }

    #[inline]
    fn choice(&self) -> Choice<'_> {
        match self.strategy() {
            AllocationStrategy::RoundRobin => Choice::RoundRobin,
            _ => Choice::LeastLoaded(self.completions.weights()),
        }
    }

    /// Leases a stream for a workload: `Normal` priority, or `High` for `Coordination` under
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

    /// Returns the current strategy.
    #[inline]
    #[must_use]
    pub fn strategy(&self) -> AllocationStrategy {
        AllocationStrategy::from_index(self.strategy.load(Ordering::Relaxed))
    }

    /// Returns the split used by [`AllocationStrategy::Workload`].
    #[must_use]
    pub fn split(&self) -> WorkloadSplit {
        *self.split.lock()
    }

    /// Returns the minimum and maximum number of streams per priority.
    #[must_use]
    pub fn bounds(&self) -> RangeInclusive<usize> {
        self.bounds.clone()
    }

    /// Changes the strategy. Existing leases keep their streams.
    pub fn set_strategy(&self, strategy: AllocationStrategy) {
        self.configure(strategy, None);
    }

    /// Applies a strategy and a validated split, or leaves the split as it is.
    fn configure(&self, strategy: AllocationStrategy, split: Option<WorkloadSplit>) {
        let mut kept = self.split.lock();
        let split = split.unwrap_or(*kept);
        for (group, priority) in self.groups.iter().zip(PRIORITIES) {
            group.allow(strategy::places(strategy, split, *self.bounds.end(), priority));
        }
        self.strategy.store(strategy as u8, Ordering::Relaxed);
        *kept = split;
    }

    /// Destroys idle, unleased streams down to the minimum of each priority; returns how many. Calls the driver. A
    /// lease also retires one idle stream at a time if the pool has not grown for a while.
    pub fn trim(&self) -> usize {
        self.groups.iter().map(PriorityGroup::trim).sum()
    }

    /// Returns the number of streams of a priority.
    #[must_use]
    pub fn streams(&self, priority: StreamPriority) -> usize {
        self.groups[priority as usize].streams()
    }

    /// Returns the number of leases, including those being acquired or dropped.
    #[must_use]
    pub fn leases(&self) -> usize {
        let mut leases = 0_usize;
        for group in &self.groups {
            group.look(|_, _, held| leases += held);
        }
        leases
    }

    /// Returns the operations in flight on all streams, without calling the driver.
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

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device.id()
    }

    /// Blocks until all work on all streams is complete.
    ///
    /// # Errors
    /// The first error of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let mut streams: Vec<CudaStream> = Vec::new();
        for group in &self.groups {
            group.look(|_, stream, _| streams.push(CudaStream::clone(stream)));
        }
        let mut outcome = Ok(());
        // Wait for every stream, also after an error.
        for stream in &streams {
            outcome = outcome.and(stream.synchronize());
        }
        outcome
    }

    /// Loads the kernels for [`CopyInPlace`](transload_core::Operation::CopyInPlace) and fills with patterns of 8 and
    /// 16 bytes. The first load takes milliseconds, which should not happen while holding claims. They stay loaded
    /// while the pool exists.
    ///
    /// # Errors
    /// `Unsupported` if the driver rejects the kernels; the driver's.
    pub fn prepare_in_place(&self) -> Result<()> {
        if self.kernels.get().is_none() {
            let kernels = Kernels::of(self.device.context()?)?;
            // Another thread may have been first, with equivalent kernels.
            let _first = self.kernels.set(kernels);
        }
        Ok(())
    }

    /// Returns whether [`prepare_in_place`](Self::prepare_in_place) has loaded the kernels.
    #[must_use]
    pub fn is_prepared_in_place(&self) -> bool {
        self.kernels.get().is_some()
    }

    /// Records the duration of an operation of this workload, for
    /// [`average_workload_time`](Self::average_workload_time),
    /// [`optimize_configuration`](Self::optimize_configuration) and the weights of outstanding work. Keeps the last
    /// 256 per workload.
    pub fn record_workload_completion(&self, workload: WorkloadType, took: Duration) {
        self.completions.record(workload, took);
    }

    /// Returns the average of the kept durations, if any.
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
