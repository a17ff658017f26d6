//! State of a unified buffer: open ranges, and which bytes of the host's copy are current.
//!
//! Protected by one lock, under which nothing blocks.

use std::ops::Range;

use transload_core::{DeviceId, Fence, RangeGuard, RawBuffer};

use super::{Role, range_locks::RangeLocks};
use crate::ranges::{Ranges, bytes_of};

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) locks: RangeLocks,
    pub(crate) copy: HostCopy,
    pub(crate) place: Placement,
}

/// The host's copy of device memory.
///
/// If the buffer's write count grew by more than the slices' own writes, every byte outside open slices may be stale.
#[derive(Debug, Default)]
pub(crate) struct HostCopy {
    /// The buffer's write count at the last check.
    seen: u64,
    /// Ranges in which the copy is as new as device memory.
    valid: Ranges,
    /// Downloads in flight: valid unless they fail.
    downloads: Vec<Download>,
    /// Number of write guards dropped so far.
    guards: u64,
    /// Host writes whose upload failed: newer than device memory, which stays held meanwhile.
    failed_uploads: Vec<RangeGuard>,
}

/// A download in flight: its range and its fence.
pub(crate) type Download = (Range<usize>, Fence);

/// Hints given to the driver about managed memory.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// Ranges prefetched to a device and not accessed by the host since, as far as known. An error costs a redundant or
    /// a missing prefetch.
    pub(crate) prefetched: Option<(DeviceId, Ranges)>,
    /// Use epoch of the memory at the last check, including the device's next use.
    pub(crate) use_epoch: u64,
    /// Role and range of the last advice.
    pub(crate) advised: Option<(Role, DeviceId, Range<usize>)>,
    /// All roles for which advice was ever given.
    pub(crate) roles: Vec<(Role, DeviceId)>,
}

impl State {
    /// Invalidates the copy if device memory was written by others since the last check. `writes` is the buffer's write
    /// count; `own` of them are slices opened under this lock.
    pub(crate) fn refresh(&mut self, writes: u64, own: u64) {
        if writes != self.copy.seen.wrapping_add(own) {
            self.copy.valid.clear();
            self.revalidate_locked_ranges();
        }
        self.copy.seen = writes;
    }

    /// Records the end of a download. The caller drops its own clone of the fence without the lock: it may be the last
    /// handle of its stream.
    pub(crate) fn download_finished(&mut self, (range, fence): &Download, well: bool) {
        let same =
            |other: &Fence| other.point() == fence.point() && other.timeline().id() == fence.timeline().id();
        self.copy.downloads.retain(|(_, other)| !same(other));
        if !well {
            self.copy.valid.remove(range);
            self.revalidate_locked_ranges();
        }
    }

    fn revalidate_locked_ranges(&mut self) {
        let failed_uploads = self.copy.failed_uploads.iter().map(|hold| bytes_of(hold.buffer()));
        for range in failed_uploads.chain(self.locks.ready().cloned()) {
            self.copy.valid.insert(range);
        }
    }
}

impl HostCopy {
    pub(crate) fn missing(&self, range: &Range<usize>) -> Ranges {
        self.valid.missing(range)
    }

    /// Marks a range of the copy as current. A hold or claim must keep writers off device memory.
    pub(crate) fn set_valid(&mut self, range: Range<usize>) {
        self.valid.insert(range);
    }

    /// Marks a range as stale after a write guard: a device may have written it, even unordered.
    pub(crate) fn set_stale(&mut self, range: &Range<usize>) {
        self.guards += 1;
        self.valid.remove(range);
    }

    /// Returns the number of write guards dropped so far.
    pub(crate) fn guards(&self) -> u64 {
        self.guards
    }

    /// Records a download in flight. Returns the downloads that it replaces, to be dropped without the lock.
    pub(crate) fn add_download(&mut self, range: Range<usize>, fence: Fence) -> Vec<Download> {
        // It is ordered after those and covers them.
        let covered = |(older, _): &mut Download| range.start <= older.start && older.end <= range.end;
        let replaced = self.downloads.extract_if(.., covered).collect();
        self.downloads.push((range.clone(), fence));
        self.valid.insert(range);
        replaced
    }

    /// Returns downloads known to be complete whose result was not checked yet.
    pub(crate) fn finished_downloads(&self) -> Vec<Download> {
        self.downloads.iter().filter(|(_, fence)| fence.is_known_complete()).cloned().collect()
    }

    /// Returns downloads that overlap the range.
    pub(crate) fn downloads(&self, range: &Range<usize>) -> Vec<Download> {
        let meets = |other: &Range<usize>| other.start.max(range.start) < other.end.min(range.end);
        self.downloads.iter().filter(|(other, _)| meets(other)).cloned().collect()
    }

    pub(crate) fn keep_failed_upload(&mut self, hold: RangeGuard) {
        self.valid.insert(bytes_of(hold.buffer()));
        self.failed_uploads.push(hold);
    }

    pub(crate) fn take_failed_uploads(&mut self) -> Vec<RangeGuard> {
        std::mem::take(&mut self.failed_uploads)
    }
}

impl Placement {
    /// Forgets prefetched ranges if another user accessed the memory since the last check.
    pub(crate) fn refresh(&mut self, raw: &RawBuffer) {
        if self.prefetched.as_ref().is_some_and(|(device, _)| raw.use_epoch_for(*device) != self.use_epoch) {
            self.prefetched = None;
        }
    }

    /// Records the current use epoch: changes since the last check are this buffer's own.
    fn record_current(&mut self, raw: &RawBuffer) {
        if let Some((device, _)) = &self.prefetched {
            self.use_epoch = raw.use_epoch_for(*device);
        }
    }

    /// Records a host access, which migrates pages of the range.
    pub(crate) fn host_accessed(&mut self, raw: &RawBuffer, range: &Range<usize>) {
        if let Some((_, ranges)) = &mut self.prefetched {
            ranges.remove(range);
        }
        self.record_current(raw);
    }

    /// Records a prefetch of the range.
    pub(crate) fn prefetched_to(&mut self, raw: &RawBuffer, place: DeviceId, range: Range<usize>) {
        match &mut self.prefetched {
            Some((device, ranges)) if *device == place => ranges.insert(range),
            Some((_, ranges)) if place.is_cpu() => ranges.remove(&range),
            None if place.is_cpu() => {}
            other => {
                let mut ranges = Ranges::default();
                ranges.insert(range);
                *other = Some((place, ranges));
            }
        }
        self.record_current(raw);
    }

    pub(crate) fn is_prefetched(&self, place: DeviceId, range: &Range<usize>) -> bool {
        self.prefetched.as_ref().is_some_and(|(device, ranges)| *device == place && ranges.covers(range))
    }
}
