//! Who has which range of a unified buffer just now: slices of the host's, and guards of devices'.

use std::ops::Range;

use transload_core::{Access, Error, ErrorKind, Result};

/// Identifies a holder until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HolderId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A slice.
    Host,
    /// A guard. Guards do not exclude each other: the order of their devices' work is that of its submission.
    Device,
}

#[derive(Debug)]
struct Holder {
    id: HolderId,
    range: Range<usize>,
    side: Side,
    access: Access,
    /// The host's copy of the range is the newest, and stays so while the slice is open.
    ready: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Holders {
    last: u64,
    open: Vec<Holder>,
}

impl Holders {
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

    pub(crate) fn add(&mut self, range: Range<usize>, side: Side, access: Access) -> HolderId {
        self.last += 1;
        let id = HolderId(self.last);
        self.open.push(Holder { id, range, side, access, ready: false });
        id
    }

    pub(crate) fn set_ready(&mut self, id: HolderId) {
        if let Some(holder) = self.open.iter_mut().find(|holder| holder.id == id) {
            holder.ready = true;
        }
    }

    pub(crate) fn remove(&mut self, id: HolderId) {
        self.open.retain(|holder| holder.id != id);
    }

    /// The ranges whose copy for the host open slices look at.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Range<usize>> {
        self.open.iter().filter(|holder| holder.ready).map(|holder| &holder.range)
    }
}
