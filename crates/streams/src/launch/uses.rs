//! The declared uses of a launch, merged such that no two conflict, and the roles of its buffers.

use std::collections::HashMap;

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Access, BufferId, DeviceId, Error, ErrorKind, RawBuffer, Result};
use transload_memory::Role;

/// Declared uses.
pub(crate) type Uses<'a> = SmallVec<[(&'a RawBuffer, Access); 4]>;

/// Merges a written range with one that it contains, or that contains it: two conflicting claims of one launch would wait
/// for each other.
///
/// # Errors
/// `Overlap` if two ranges overlap partially and one is written; declare a range that contains both.
pub(crate) fn merge_conflicting(uses: &mut Uses<'_>) -> Result<()> {
    while let Some((kept, removed)) = next_to_merge(uses)? {
        uses[kept].1 = Access::Write;
        uses.swap_remove(removed);
    }
    Ok(())
}

/// Returns a use and a conflicting one that it contains.
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

/// Buffers and their declared roles.
pub(crate) type Roles<'a> = SmallVec<[(&'a RawBuffer, Role); 2]>;

/// Returns the last declared buffer with a role.
///
/// # Errors
/// `InvalidArgument` if there is none, or for an input that is written.
pub(crate) fn role_of_last<'a>(declared: &Uses<'a>, role: Role) -> Result<(&'a RawBuffer, Role)> {
    let text = match declared.last() {
        Some((_, Access::Write)) if role == Role::Input => {
            "an input is not written; valid roles for what is written are Resident, Output and InOut"
        }
        Some((buffer, _)) => return Ok((buffer, role)),
        None => "a role applies to the last declared buffer; declare one first",
    };
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// Maximum number of recorded ranges. When it is reached, all are dropped, and some advice is given again.
const MAX_RANGES: usize = 1024;

/// The role for which this executor gave advice last, per range.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    known: Mutex<HashMap<(BufferId, usize, usize), Role>>,
}

impl Advised {
    /// Gives the advice for a role, unless it was given last for this range.
    pub(crate) fn apply(&self, buffer: &RawBuffer, role: Role, device: DeviceId) -> Result<()> {
        let range = range(buffer);
        let key = (buffer.id(), range.start, range.end);
        if self.known.lock().get(&key) == Some(&role) {
            return Ok(());
        }
        role.apply(buffer, device)?;
        let mut known = self.known.lock();
        if known.len() >= MAX_RANGES {
            known.clear();
        }
        known.insert(key, role);
        Ok(())
    }
}
