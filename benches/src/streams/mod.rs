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

use anyhow::{Context as _, Result};

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

/// All rows of streams on the device with this ordinal, which is the session's.
///
/// # Errors
/// Those of the library and of the driver.
pub fn rows(options: &Options, session: &Session, ordinal: u32, begin: impl Fn(&str)) -> Result<Vec<Row>> {
    let rig = Rig::new(options, session, ordinal)?;
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        begin(name);
        rows.extend(part(&rig).with_context(|| format!("streams, {name}"))?);
    }
    rig.finish()?;
    Ok(rows)
}
