//! The chunks of a list that goes through scratch memory of a device.

use std::ops::Range;

use transload_core::RawBuffer;

use super::device_scratch::{LAUNCH, MOST};

/// Returns how many bytes of scratch memory each pair takes, with the gap before it.
pub(super) fn lengths(pairs: &[(RawBuffer, RawBuffer)], gap: usize) -> impl Iterator<Item = usize> + Clone {
    let mut last: Option<&RawBuffer> = None;
    pairs.iter().map(move |(src, _)| {
        if src.is_empty() {
            return 0;
        }
        let before = last.replace(src).and_then(|last| last.gap_to(src, gap));
        before.unwrap_or(0) + src.len()
    })
}

/// Cuts a list of pairs of these lengths into as few chunks as possible, of about equal lengths. Returns the indices of each one's pairs,
/// and its bytes.
pub(super) fn chunks_of(lengths: impl Iterator<Item = usize> + Clone) -> Vec<(Range<usize>, usize)> {
    let (count, total) = lengths
        .clone()
        .fold((0, 0_usize), |(count, total), length| (count + 1, total.saturating_add(length)));
    let enough = total.div_ceil(total.div_ceil(LAUNCH).max(1));
    let mut chunks = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    // Those of 0 bytes begin no chunk.
    for (index, length) in lengths.enumerate().filter(|(_, length)| *length > 0) {
        if bytes > 0 && (bytes >= enough || bytes + length > MOST) {
            chunks.push((first..index, bytes));
            (first, bytes) = (index, 0);
        }
        bytes += length;
    }
    chunks.push((first..count, bytes));
    chunks
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_chunk_is_empty() {
        let lengths = [0, super::LAUNCH, 0, super::LAUNCH, 0, 0];
        let expected = [(0..3, super::LAUNCH), (3..6, super::LAUNCH)];
        assert_eq!(super::chunks_of(lengths.into_iter()), expected);
    }
}
