//! The bytes that one driver call each copies between a staging buffer and the device.

use std::{iter, ops::Range};

use super::{StagedKind, StagedTransfer, parts::is_short, ring::CAPACITY};
use crate::built_in::{FIRST_SEGMENT, SEGMENT, SHORT_PART, SHORT_SEGMENT, SHORT_SEGMENTS};

impl StagedTransfer {
    /// Returns the bytes that one driver call copies from byte `at` of the transfer on, at least if more follow.
    pub(super) fn segment(&self, at: usize) -> usize {
        let (bytes, is_upload) = (self.pieces.bytes(), self.is_upload());
        if self.is_into_caches() {
            return CAPACITY;
        }
        let usual = self.usual_segment();
        if !is_short(bytes) {
            return between(usual, at, bytes.saturating_sub(at));
        }
        let most = if is_upload { usual } else { SEGMENT };
        most.min((bytes / SHORT_SEGMENTS).next_multiple_of(SHORT_PART).max(SHORT_SEGMENT))
    }

    fn usual_segment(&self) -> usize {
        let usual = if self.is_upload() { self.tuning.upload_segment } else { self.tuning.download_segment };
        usize::try_from(usual).unwrap_or(SEGMENT)
    }

    /// Returns the ranges of a chunk that one driver call each copies from the device, in the chunk.
    pub(super) fn segments(&self, chunk: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut at = chunk.start;
        iter::from_fn(move || {
            let start = (at < chunk.end).then_some(at)?;
            at = (start + self.segment(start)).min(chunk.end);
            Some(start - chunk.start..at - chunk.start)
        })
    }

    /// Returns whether several threads copy a chunk.
    pub(super) fn has_parts(&self, chunk: &Range<usize>) -> bool {
        let is_download = matches!(self.kind, StagedKind::Download(_));
        let is_last = chunk.end == self.pieces.bytes();
        self.has_parts || is_download && self.usual_segment() > SEGMENT && is_last && !self.is_fresh
    }
}

/// Returns the bytes of a segment after `before` others, of which `left` are left. Either the device or the host has nothing to do until
/// it has the first segment, and while the other copies the last one, so that long ones begin and end with short ones.
fn between(usual: usize, before: usize, left: usize) -> usize {
    if usual <= SEGMENT {
        return usual;
    }
    let most = before.saturating_mul(2).min((left / 2).next_multiple_of(SHORT_PART));
    usual.min(most.max(FIRST_SEGMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    /// Returns the lengths of the segments of so many bytes, in KiB.
    fn lengths(bytes: usize, segment: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut at = 0;
        let next = || {
            let length = segment(at).min(bytes - at);
            at += length;
            (length > 0).then_some(length / KIB)
        };
        iter::from_fn(next).collect()
    }

    #[test]
    fn long_segments_grow_from_a_short_one_and_shrink_to_a_short_one() {
        let of = |usual, bytes| lengths(bytes * KIB, |at| between(usual * KIB, at, bytes * KIB - at));
        assert_eq!(of(4096, 16384), [512, 1024, 3072, 4096, 3840, 1920, 960, 512, 448]);
        assert_eq!(of(2048, 8192), [512, 1024, 2048, 2048, 1280, 640, 512, 128]);
    }

    #[test]
    fn usual_segments_are_of_one_length() {
        for usual in [SEGMENT / 2, SEGMENT] {
            let bytes = 8 * SEGMENT;
            let lengths = lengths(bytes, |at| between(usual, at, bytes - at));
            assert!(lengths.iter().all(|length| *length == usual / KIB), "{lengths:?}");
        }
    }
}
