//! Several ways of doing one thing, compared: what the rows of streams and of memory are made with.

pub(crate) mod pairs;
mod rig;
pub(crate) mod rival;
pub(crate) mod together;
mod turns;

use anyhow::Result;

use crate::{cuda::Session, options::Options, row::Row};

pub(crate) use rig::Rig;
pub(crate) use turns::{Contest, Proof, Way};

/// Rows about one matter.
pub(crate) type Part = (&'static str, fn(&Rig<'_>) -> Result<Vec<Row>>);

/// The rows of all parts of a group, on the device with this ordinal, which is the session's. A part that fails costs its own
/// rows only; why is said in `failures`.
///
/// # Errors
/// Those of the library and of the driver before the first part and after the last.
pub(crate) fn rows(
    group: &'static str,
    parts: &[Part],
    (options, session, ordinal): (&Options, &Session, u32),
    begin: impl Fn(&str),
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let rig = Rig::new(group, options, session, ordinal)?;
    let mut rows = Vec::new();
    for (name, part) in parts {
        begin(&format!("{group}, {name}"));
        match part(&rig) {
            Ok(more) => rows.extend(more),
            Err(error) => failures.push(format!("{group}, {name}: {error:#}")),
        }
    }
    rig.finish()?;
    Ok(rows)
}
