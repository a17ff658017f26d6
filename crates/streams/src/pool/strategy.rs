//! Strategies for choosing a stream, and which streams each workload uses.

use std::fmt;

use transload_core::{StreamPriority, WorkloadType};

use super::slots::bit;

/// How a pool chooses among the streams of a priority. No strategy calls the driver: work counts as outstanding until it
/// is known to be complete, for example after a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllocationStrategy {
    /// The next in turn, which is best if all work is alike. Each thread has its own position, and threads start at
    /// different streams: leases of one thread are spread evenly, those of many threads nearly so.
    RoundRobin,
    /// A stream that is not leased and has no outstanding work, preferably the thread's last one. If there is none, the
    /// stream with the fewest leases, then with the least outstanding work, weighted by the times recorded for its workload.
    /// A thread that enqueues consecutive copies of at most 64 KiB or small fills stays with its stream for up to 16.
    LoadBalanced,
    /// Like `LoadBalanced`, but lower priorities have fewer streams: `High` all, `Normal` half, `Low` one. `Coordination`
    /// without a priority counts as `High`, since other work waits for it.
    Priority,
    /// Like `LoadBalanced`, with separate streams for each workload, so that copies do not queue after kernels.
    #[default]
    Workload,
}

impl AllocationStrategy {
    /// All strategies.
    pub const ALL: [Self; 4] = [Self::RoundRobin, Self::LoadBalanced, Self::Priority, Self::Workload];

    pub(crate) fn from_index(index: u8) -> Self {
        Self::ALL.get(usize::from(index)).copied().unwrap_or_default()
    }
}

impl fmt::Display for AllocationStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// All workloads by index.
pub(crate) const WORKLOADS: [WorkloadType; 4] =
    [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination];

/// Number of streams of a priority for each workload, under [`AllocationStrategy::Workload`]. A workload without streams
/// uses another's: `Mixed` those of `Compute`, `Coordination` those of `Memory`, and these two each other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkloadSplit {
    /// For kernels.
    pub compute: usize,
    /// For copies and fills.
    pub memory: usize,
    /// For both.
    pub mixed: usize,
    /// For fences and barriers.
    pub coordination: usize,
}

impl WorkloadSplit {
    /// Splits `streams`: one for `Mixed` from three on, one for `Coordination` from four on, and half of the others each for
    /// `Compute` and `Memory`.
    #[must_use]
    pub fn of(streams: usize) -> Self {
        let mixed = usize::from(streams >= 3);
        let coordination = usize::from(streams >= 4);
        let rest = streams - mixed - coordination;
        Self { compute: rest.div_ceil(2).min(rest), memory: rest / 2, mixed, coordination }
    }

    /// Returns the total number of streams; `usize::MAX` if that overflows.
    #[must_use]
    pub fn total(self) -> usize {
        self.counts().into_iter().fold(0, usize::saturating_add)
    }

    /// Counts by workload index.
    pub(crate) fn counts(self) -> [usize; 4] {
        [self.compute, self.memory, self.mixed, self.coordination]
    }

    pub(crate) fn from_counts([compute, memory, mixed, coordination]: [usize; 4]) -> Self {
        Self { compute, memory, mixed, coordination }
    }

    /// Bit masks of each workload's slots, which are consecutive.
    fn masks(self) -> [u64; 4] {
        let mut next = 0;
        let [compute, memory, mixed, coordination] = self.counts().map(|count| {
            let mask = ones(next + count) & !ones(next);
            next += count;
            mask
        });
        let or = |mask: u64, other: u64| if mask == 0 { other } else { mask };
        let any = or(or(compute, memory), or(mixed, coordination));
        let (compute, memory) = (or(or(compute, memory), any), or(or(memory, compute), any));
        [compute, memory, or(mixed, compute), or(coordination, memory)]
    }
}

impl fmt::Display for WorkloadSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compute, memory, mixed, coordination } = self;
        write!(f, "{compute} compute, {memory} memory, {mixed} mixed, {coordination} coordination")
    }
}

/// Returns a mask of the lowest `count` bits.
fn ones(count: usize) -> u64 {
    (0..count.min(super::shard::MAX_STREAMS)).fold(0, |mask, index| mask | bit(index))
}

/// Returns the slots of a group of `most` that each workload may use.
pub(crate) fn places(
    strategy: AllocationStrategy,
    split: WorkloadSplit,
    most: usize,
    priority: StreamPriority,
) -> [u64; 4] {
    match strategy {
        AllocationStrategy::RoundRobin | AllocationStrategy::LoadBalanced => [ones(most); 4],
        AllocationStrategy::Priority => {
            let count = match priority {
                StreamPriority::High => most,
                StreamPriority::Normal => most.div_ceil(2),
                StreamPriority::Low => 1,
            };
            [ones(count); 4]
        }
        AllocationStrategy::Workload => split.masks(),
    }
}
