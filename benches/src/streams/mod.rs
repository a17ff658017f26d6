//! Rows of streams: costs of leasing, allocating, enqueuing, completing and overlapping, compared with the raw driver,
//! cudarc and PyTorch (by separate scripts on the same machine).
//!
//! Every row compares interleaved variants of one operation (`comparison`). The first variant is the reference: the best
//! hand-written driver calls, or a program without the feature. cudarc loads the system's driver itself, so its rows exist
//! only if the library uses that driver, too.

mod acquiring;
mod allocating;
mod completing;
mod enqueuing;
mod events;
mod graphs;
mod launching;
mod optimizing;
mod overlapping;
mod priorities;
mod thousands;
mod uploading;
#[allow(dead_code, reason = "shared with the tests of `transload-streams`")]
mod workload;

use crate::comparison::{self, Fixture, Parts, concurrent, cudarc_baseline, pairs};

/// The kernel that keeps the device busy.
pub(crate) const SPIN: &str = crate::reference::SPIN;

/// Every part, in order.
pub(crate) const PARTS: Parts = (
    "streams",
    &[
        ("leasing", acquiring::rows),
        ("allocating", allocating::rows),
        ("enqueuing", enqueuing::rows),
        ("completing", completing::rows),
        ("thousands at once", thousands::rows),
        ("events", events::rows),
        ("launching", launching::rows),
        ("kernels that overlap", overlapping::rows),
        ("priorities", priorities::rows),
        ("graphs", graphs::rows),
        ("uploading threads", uploading::rows),
        ("loads that want different answers", optimizing::rows),
    ],
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver(PARTS);
    }
}
