//! Courses of unified memory for automatic prefetch: what each pattern costs with no prefetch, with one written by hand, and
//! with what the library predicts.

mod access_pattern;
mod short_launches;
mod workload;

pub use access_pattern::AccessPattern;
pub use short_launches::{LaunchOrder, ShortLaunches, ShortLaunchesSize};
pub use workload::{PrefetchMode, PrefetchWorkload, PrefetchWorkloadSize};
