//! What a launch declares to read and write, brought into a form that can be claimed: no two uses of it conflict.

use smallvec::SmallVec;
use transload_core::{Access, Error, ErrorKind, RawBuffer, Result};

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
