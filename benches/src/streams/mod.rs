//! Rows of streams: what leasing, allocating, enqueuing, completing and overlapping cost beside the raw driver, cudarc and
//! (by scripts of their own, in the same call on the same machine) PyTorch.
//!
//! Every row compares variants of doing one thing in turns (`comparison`). The first variant is the reference: raw driver calls as
//! good as they can be written by hand, or a program that lacks what the row shows. cudarc loads the system's driver by
//! itself, so its rows exist only where that is what the library uses.

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

use anyhow::Result;

use crate::{
    comparison::{self, Fixture, Part, concurrent, cudarc_baseline, pairs},
    cuda::Session,
    options::Options,
    row::Row,
};

/// The kernel that keeps the device busy, for both sides.
pub(crate) const SPIN: &str = crate::reference::SPIN;

/// Every part, in order.
const PARTS: [Part; 12] = [
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
];

/// All rows of streams on the device with this ordinal, which is the session's; see `comparison::rows`.
///
/// # Errors
/// If the library or the driver fails before the first part or after the last.
pub fn rows(
    options: &Options,
    session: &Session,
    ordinal: u32,
    begin: &dyn Fn(&str),
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    comparison::rows("streams", &PARTS, (options, session, ordinal), begin, failures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn without_a_gpu_every_part_runs_simulated_and_its_rows_promise_nothing() {
        tested_on_the_software_driver("streams", PARTS.len(), rows);
    }
}
