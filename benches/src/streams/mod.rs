//! Rows of streams: what leasing, allocating, enqueuing, completing and overlapping cost beside the raw driver, cudarc and
//! (by scripts of their own, in the same call on the same machine) PyTorch.
//!
//! Every row compares ways of doing one thing in turns (`contest`). The first way is the reference: raw driver calls as
//! good as they can be written by hand, or a program that lacks what the row shows. cudarc loads the system's driver by
//! itself, so its rows exist only where that is what the library uses.

mod acquiring;
mod allocating;
mod completing;
mod enqueuing;
mod events;
mod graphs;
mod launching;
mod loads;
mod overlapping;
mod priorities;
mod thousands;
mod uploading;

use anyhow::Result;

use crate::{
    contest::{self, Part, Rig, pairs, rival, together},
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
    ("loads that want different answers", loads::rows),
];

/// All rows of streams on the device with this ordinal, which is the session's; see [`contest::rows`].
///
/// # Errors
/// Those of the library and of the driver before the first part and after the last.
pub fn rows(
    options: &Options,
    session: &Session,
    ordinal: u32,
    begin: impl Fn(&str),
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    contest::rows("streams", &PARTS, (options, session, ordinal), begin, failures)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeSet};

    use clap::Parser as _;

    use super::*;
    use crate::cuda;

    #[test]
    fn without_a_gpu_every_part_runs_simulated_and_its_rows_promise_nothing() {
        let ordinal = cuda::simulate(7).unwrap();
        let session = Session::open(ordinal).unwrap();
        let options = Options::parse_from(["transload-bench", "--quick", "--simulate", "--repetitions", "2"]);
        let (mut failures, begun) = (Vec::new(), Cell::new(0));
        let begin = |_: &str| begun.set(begun.get() + 1);
        let rows = rows(&options, &session, ordinal, begin, &mut failures).unwrap();
        assert_eq!((failures, begun.get()), (Vec::new(), PARTS.len()));
        let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids.len(), rows.len(), "identities differ");
        for row in &rows {
            assert!(row.id.is_ascii() && row.id.starts_with("streams/"), "{}", row.id);
            assert!(row.simulated && row.goal.is_none(), "{}", row.id);
            assert!(row.verified || row.bytes == 0, "{} moved bytes that nobody looked at", row.id);
            assert!(!row.id.contains("cudarc"), "cudarc cannot use the software driver");
        }
    }
}
