//! What a launch declares to read and write, brought into a form that can be claimed: no two uses of it conflict. And the roles
//! that it gives its buffers, with the advice that was given for them already.

use std::collections::HashMap;

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Access, BufferId, DeviceId, Error, ErrorKind, RawBuffer, Result};
use transload_memory::Role;

/// Declared uses. A range that one declaration contains in another counts once, as written if either says so.
pub(crate) type Uses<'a> = SmallVec<[(&'a RawBuffer, Access); 4]>;

/// Two conflicting claims of one launch would wait for each other: they become one, or are refused.
///
/// # Errors
/// `Overlap` where two ranges overlap in part and one of them is written: the caller then declares what contains both.
pub(crate) fn settle(uses: &mut Uses<'_>) -> Result<()> {
    while let Some((kept, gone)) = next_to_merge(uses)? {
        uses[kept].1 = Access::Write;
        uses.swap_remove(gone);
    }
    Ok(())
}

/// A use that contains another one in conflict with it, and that other one.
fn next_to_merge(uses: &Uses<'_>) -> Result<Option<(usize, usize)>> {
    for (index, (one, access)) in uses.iter().enumerate() {
        for (other_index, (other, other_access)) in uses.iter().enumerate().skip(index + 1) {
            let reads_only = *access == Access::Read && *other_access == Access::Read;
            if reads_only || !one.overlaps(other) {
                continue;
            }
            if contains(one, other) {
                return Ok(Some((index, other_index)));
            }
            if contains(other, one) {
                return Ok(Some((other_index, index)));
            }
            let (a, b) = (range(one), range(other));
            let text = format!(
                "the launch declares bytes {a:?} and {b:?} of one allocation, which overlap in part, and writes at least one; \
                 declare one range that contains both"
            );
            return Err(Error::new(ErrorKind::Overlap, text));
        }
    }
    Ok(None)
}

fn contains(outer: &RawBuffer, inner: &RawBuffer) -> bool {
    let (outer, inner) = (range(outer), range(inner));
    outer.start <= inner.start && inner.end <= outer.end
}

pub(crate) fn range(buffer: &RawBuffer) -> std::ops::Range<usize> {
    buffer.offset()..buffer.offset().saturating_add(buffer.len())
}

/// Buffers with the roles that were declared for them.
pub(crate) type Roles<'a> = SmallVec<[(&'a RawBuffer, Role); 2]>;

/// The role of the buffer that was declared last.
///
/// # Errors
/// `InvalidArgument` where there is none, or where an input is written.
pub(crate) fn of_the_last<'a>(declared: &Uses<'a>, role: Role) -> Result<(&'a RawBuffer, Role)> {
    let text = match declared.last() {
        Some((_, Access::Write)) if role == Role::Input => {
            "an input is not written; valid roles for what is written are Resident, Output and InOut"
        }
        Some((buffer, _)) => return Ok((buffer, role)),
        None => "a role is that of the buffer declared before it; declare one first",
    };
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// How many ranges are remembered; beyond that all are forgotten, which costs some advice given twice.
const MOST: usize = 1024;

/// Which role each range was last advised for by this executor.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    known: Mutex<HashMap<(BufferId, usize, usize), Role>>,
}

impl Advised {
    /// Gives the advice for a role, unless it was given last.
    pub(crate) fn apply(&self, buffer: &RawBuffer, role: Role, device: DeviceId) -> Result<()> {
        let range = range(buffer);
        let key = (buffer.id(), range.start, range.end);
        if self.known.lock().get(&key) == Some(&role) {
            return Ok(());
        }
        role.apply(buffer, device)?;
        let mut known = self.known.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, role);
        Ok(())
    }
}
