//! Strategies for choosing a stream, and which streams each workload uses.

use std::fmt;

use transload_core::{StreamPriority, WorkloadType};

use super::slots::bit;

/// How a pool chooses among the streams of a priority. None asks the driver: work counts as outstanding until its end was
/// observed, which waiting for it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllocationStrategy {
    /// The next in turn: as good as any where all work is alike. Each thread goes round by itself, strictly in turn, and begins
    /// at another stream than the thread before it; so a thread's leases spread evenly, and those of many threads nearly so.
    RoundRobin,
    /// One that is neither leased nor has work outstanding, the one that the thread had last before others. Where there is none,
    /// the one with the fewest leases, then with the least work outstanding, weighted by the times recorded for its workload.
    /// A thread that enqueues copies of at most 64 KiB or small fills one after another stays with its stream for up to 16.
    LoadBalanced,
    /// As `LoadBalanced`, with fewer streams the less urgent: `High` may have all, `Normal` half of them, `Low` one. Work that
    /// names no priority but is waited for by other work (`Coordination`) counts as `High`.
    Priority,
    /// As `LoadBalanced`, with streams set apart for each workload, so that copies do not queue behind kernels.
    #[default]
    Workload,
}

impl AllocationStrategy {
    /// All of them.
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

/// How many streams of a priority each workload has under [`AllocationStrategy::Workload`]. A workload with none uses
/// another's: `Mixed` that of `Compute`, `Coordination` that of `Memory`, and these two each other's.
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
    /// A split of `streams`: one each for `Mixed` and `Coordination` where there are four or more, the others in halves.
    #[must_use]
    pub fn of(streams: usize) -> Self {
        let mixed = usize::from(streams >= 3);
        let coordination = usize::from(streams >= 4);
        let rest = streams - mixed - coordination;
        Self { compute: rest.div_ceil(2).min(rest), memory: rest / 2, mixed, coordination }
    }

    /// All streams together; `usize::MAX` where that overflows.
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
