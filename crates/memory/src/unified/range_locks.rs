//! Who has which range of a unified buffer just now: slices of the host's, and guards of devices'.

use std::ops::Range;

use transload_core::{Access, Error, ErrorKind, Result};

/// Identifies a lock until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeLockId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A slice.
    Host,
    /// A guard. Guards do not exclude each other: the order of their devices' work is that of its submission.
    Device,
}

#[derive(Debug)]
struct RangeLock {
    id: RangeLockId,
    range: Range<usize>,
    side: Side,
    access: Access,
    /// The host's copy of the range is the newest, and stays so while the slice is open.
    ready: bool,
}

#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    last: u64,
    open: Vec<RangeLock>,
}

impl RangeLocks {
    /// Whether the other side leaves the range to this one. Readers of both sides may be there at the same time.
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

    /// The ranges whose copy for the host open slices look at.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Range<usize>> {
        self.open.iter().filter(|lock| lock.ready).map(|lock| &lock.range)
    }
}
