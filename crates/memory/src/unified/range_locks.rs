//! Ranges of a unified buffer locked by host slices and device guards.

use std::ops::Range;

use transload_core::{Access, Error, ErrorKind, Result};

/// Identifies a lock until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeLockId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A host slice.
    Host,
    /// A device guard. Guards do not exclude each other: device work is ordered by submission.
    Device,
}

#[derive(Debug)]
struct RangeLock {
    id: RangeLockId,
    range: Range<usize>,
    side: Side,
    access: Access,
    /// Whether the host's copy of the range is current, which it stays while the slice is open.
    ready: bool,
}

#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    last: u64,
    open: Vec<RangeLock>,
}

impl RangeLocks {
    /// Checks that the other side has no conflicting lock on the range. Reads do not conflict.
    ///
    /// # Errors
    /// `Busy`.
    pub(crate) fn check(&self, range: &Range<usize>, side: Side, access: Access) -> Result<()> {
        let in_the_way = self.open.iter().find(|other| {
            let writes = access == Access::Write || other.access == Access::Write;
            let overlap = other.range.start.max(range.start) < other.range.end.min(range.end);
            other.side != side && writes && overlap
        });
        let Some(other) = in_the_way else { return Ok(()) };
        let what = match (other.side, other.access) {
            (Side::Host, Access::Read) => "a host slice is",
            (Side::Host, Access::Write) => "a writable host slice is",
            (Side::Device, Access::Read) => "a device's guard for reading is",
            (Side::Device, Access::Write) => "a device's guard for writing is",
        };
        let text =
            format!("{what} open on bytes {} to {}; close it first", other.range.start, other.range.end);
        Err(Error::new(ErrorKind::Busy, text))
    }

    pub(crate) fn add(&mut self, range: Range<usize>, side: Side, access: Access) -> RangeLockId {
        self.last += 1;
        let id = RangeLockId(self.last);
        self.open.push(RangeLock { id, range, side, access, ready: false });
        id
    }

    pub(crate) fn set_ready(&mut self, id: RangeLockId) {
        if let Some(lock) = self.open.iter_mut().find(|lock| lock.id == id) {
            lock.ready = true;
        }
    }

    pub(crate) fn remove(&mut self, id: RangeLockId) {
        self.open.retain(|lock| lock.id != id);
    }

    /// Returns the locked ranges with a current host copy.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Range<usize>> {
        self.open.iter().filter(|lock| lock.ready).map(|lock| &lock.range)
    }
}
