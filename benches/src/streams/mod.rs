//! Rows of streams: what leasing, allocating, enqueuing, completing and overlapping cost beside the raw driver, cudarc and
//! (by scripts of their own, in the same call on the same machine) PyTorch.
//!
//! Every row compares ways of doing one thing in turns ([`contest`]). The first way is the reference: raw driver calls as
//! good as they can be written by hand, or a program that lacks what the row shows. cudarc loads the system's driver by
//! itself, so its rows exist only where that is what the library uses.

mod completing;
mod contest;
mod enqueuing;
mod events;
mod graphs;
mod overlapping;
mod pairs;
mod priorities;
mod rig;
mod rival;
mod thousands;
mod together;
mod uploading;

use anyhow::Result;

use crate::{cuda::Session, options::Options, row::Row};

pub(crate) use rig::Rig;

type Part = fn(&Rig<'_>) -> Result<Vec<Row>>;

/// Every part, in order.
const PARTS: [(&str, Part); 8] = [
    ("enqueuing", enqueuing::rows),
    ("completing", completing::rows),
    ("thousands at once", thousands::rows),
    ("events", events::rows),
    ("kernels that overlap", overlapping::rows),
    ("priorities", priorities::rows),
    ("graphs", graphs::rows),
    ("uploading threads", uploading::rows),
];

/// All rows of streams on the device with this ordinal, which is the session's. A part that fails costs its own rows only;
/// why is said in `failures`.
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
    let rig = Rig::new(options, session, ordinal)?;
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        begin(&format!("streams, {name}"));
        match part(&rig) {
            Ok(more) => rows.extend(more),
            Err(error) => failures.push(format!("streams, {name}: {error:#}")),
        }
    }
    rig.finish()?;
    Ok(rows)
}
