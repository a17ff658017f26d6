//! Batches: many pairs, whose ranges are sorted once, for the check that they are independent and for the claims.

use crate::{Access, Error, ErrorKind, RawBuffer, Result, hazard::Claimed, submit::operation::check_pair};

/// A range of a batch that is not empty.
struct Part<'a> {
    /// Allocation and first byte, as one number, which compares fast.
    begin: u128,
    end: usize,
    buffer: &'a RawBuffer,
    access: Access,
}

impl<'a> Part<'a> {
    fn of(buffer: &'a RawBuffer, access: Access) -> Option<Self> {
        let range = buffer.range();
        let begin = u128::from(buffer.id().0) << 64 | range.start as u128;
        (!range.is_empty()).then_some(Self { begin, end: range.end, buffer, access })
    }

    fn start(&self) -> usize {
        self.begin as u64 as usize
    }
}

/// Checks the pairs of a batch, and returns their ranges sorted, those merged that touch.
///
/// # Errors
/// `InvalidArgument` for unequal lengths or memory that is not writable; `Overlap` if a destination overlaps any other range of
/// the batch, since the order of the pairs is not defined.
pub(crate) fn ranges_of(pairs: &[(RawBuffer, RawBuffer)]) -> Result<Vec<Claimed<'_>>> {
    pairs.iter().try_for_each(|(src, dst)| check_pair(src, dst))?;
    let mut parts: Vec<Part<'_>> = Vec::with_capacity(2 * pairs.len());
    // One side is often in order, which the sort uses.
    parts.extend(pairs.iter().filter_map(|(src, _)| Part::of(src, Access::Read)));
    parts.extend(pairs.iter().filter_map(|(_, dst)| Part::of(dst, Access::Write)));
    parts.sort_by_key(|part| part.begin);
    let mut ranges: Vec<Claimed<'_>> = Vec::new();
    // The last allocation, the largest end of all its ranges so far, and of the written ones among them.
    let (mut allocation, mut any, mut by_write) = (u64::MAX, 0, 0);
    for part in parts {
        let (id, start, is_write) = ((part.begin >> 64) as u64, part.start(), part.access == Access::Write);
        if id != allocation {
            (allocation, any, by_write) = (id, 0, 0);
        }
        if (start < by_write || (is_write && start < any)) && !crate::mutant!("core/batch-apart") {
            let text = format!("two pairs of the batch touch byte {start} of one allocation");
            return Err(Error::new(ErrorKind::Overlap, text));
        }
        any = any.max(part.end);
        by_write = if is_write { any } else { by_write };
        match ranges.last_mut() {
            Some(last)
                if last.buffer.id().0 == id && start <= last.range.end && last.access == part.access =>
            {
                last.range.end = last.range.end.max(part.end);
            }
            _ => ranges.push(Claimed {
                buffer: part.buffer,
                range: start..part.end,
                access: part.access,
                ticket: None,
            }),
        }
    }
    Ok(ranges)
}
