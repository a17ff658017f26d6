//! What is known of a unified buffer: who has it, and which bytes of the host's copy are the newest.
//!
//! Kept under one lock, under which nothing is called that could block.

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

/// The host's copy beside a device's memory.
///
/// What is submitted to the device's memory by whomever is counted by its buffer. Where that count of writes is not what it was
/// when this was last looked at, and no slice's own, any byte may have been written that no open slice protects.
#[derive(Debug, Default)]
pub(crate) struct HostCopy {
    /// The buffer's count of writes up to which the rest holds.
    seen: u64,
    /// Where the copy is as new as the device's memory.
    valid: Ranges,
    /// Copies to the host that are on their way: part of what is valid, as long as they do not fail.
    downloads: Vec<Download>,
    /// How many guards for writing have ended.
    guards: u64,
    /// What the host wrote and could not be sent: newer than the device's memory, which nobody can use meanwhile.
    failed_uploads: Vec<RangeGuard>,
}

/// A range's copy on its way to the host, and when it is there.
pub(crate) type Download = (Range<usize>, Fence);

/// What the driver was told about where managed memory should be.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// What was prefetched to a device and not touched by the host since, as far as is known: at worst a prefetch is made that
    /// was not needed, or left out where it was.
    pub(crate) prefetched: Option<(DeviceId, Ranges)>,
    /// The memory's moves up to which that holds, the device's next use among them.
    pub(crate) moves: u64,
    /// The last role and range that advice was given for.
    pub(crate) advised: Option<(Role, DeviceId, Range<usize>)>,
    /// The roles that advice was ever given for.
    pub(crate) roles: Vec<(Role, DeviceId)>,
}

impl State {
    /// Takes notice of how often the device's memory was written so far; `own` of those were slices of this buffer that were
    /// opened under the same lock since the last look.
    pub(crate) fn refresh(&mut self, writes: u64, own: u64) {
        if writes != self.copy.seen.wrapping_add(own) {
            self.copy.valid.clear();
            self.revalidate_locked_ranges();
        }
        self.copy.seen = writes;
    }

    /// What was on its way has download_finished, or failed. Whoever calls this drops his own copy of the fence without the lock: it may
    /// be the last handle of its stream.
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

    /// The range's copy is the newest. To be called while a hold or claim keeps writers away from the device's memory.
    pub(crate) fn set_valid(&mut self, range: Range<usize>) {
        self.valid.insert(range);
    }

    /// A guard for writing ended: a device may have written the range, also around the buffer's order.
    pub(crate) fn set_stale(&mut self, range: &Range<usize>) {
        self.guards += 1;
        self.valid.remove(range);
    }

    /// How many guards for writing have ended so far.
    pub(crate) fn guards(&self) -> u64 {
        self.guards
    }

    /// The range's copy is on its way. Answers what it replaces, to be dropped without the lock.
    pub(crate) fn add_download(&mut self, range: Range<usize>, fence: Fence) -> Vec<Download> {
        // It comes after those, and over all of their bytes.
        let covered = |(older, _): &mut Download| range.start <= older.start && older.end <= range.end;
        let replaced = self.downloads.extract_if(.., covered).collect();
        self.downloads.push((range.clone(), fence));
        self.valid.insert(range);
        replaced
    }

    /// What is known to be over of what was on its way: nobody may have looked at it yet.
    pub(crate) fn finished_downloads(&self) -> Vec<Download> {
        self.downloads.iter().filter(|(_, fence)| fence.is_known_complete()).cloned().collect()
    }

    /// What of the range is on its way, or was when somebody looked.
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
    /// Takes notice of who used the memory since the last look: where it was somebody elsewhere, nothing is known any more.
    pub(crate) fn refresh(&mut self, raw: &RawBuffer) {
        if self.prefetched.as_ref().is_some_and(|(device, _)| raw.use_epoch_for(*device) != self.moves) {
            self.prefetched = None;
        }
    }

    /// What happened since the last look was the buffer's own doing.
    fn record_current(&mut self, raw: &RawBuffer) {
        if let Some((device, _)) = &self.prefetched {
            self.moves = raw.use_epoch_for(*device);
        }
    }

    /// The host touches the range: pages of it move.
    pub(crate) fn host_accessed(&mut self, raw: &RawBuffer, range: &Range<usize>) {
        if let Some((_, ranges)) = &mut self.prefetched {
            ranges.remove(range);
        }
        self.record_current(raw);
    }

    /// The range is prefetched to a place.
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
