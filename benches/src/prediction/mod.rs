//! Workloads over unified memory, with no prefetch, hand-written ones, and automatic ones.

mod access_pattern;
mod short_launches;
mod workload;

pub use access_pattern::AccessPattern;
pub use short_launches::{LaunchOrder, ShortLaunches, ShortLaunchesSize};
pub use workload::{PrefetchMode, PrefetchWorkload, PrefetchWorkloadSize};
