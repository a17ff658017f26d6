//! Who holds a range of a buffer without a fence, and what is answered to those in conflict.

use std::ops::Range;

use crate::{Access, Error, ErrorKind};

/// Why a range is held that has no fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    /// Claimed; its operation is being enqueued by some thread right now.
    Pending,
    /// A host view is open.
    View,
    /// Someone outside uses it on terms of their own.
    Loan,
}

/// The range is held.
pub(crate) fn busy(range: &Range<usize>, kind: HoldKind, open: Access) -> Error {
    let Range { start, end } = range;
    let text = match (kind, open) {
        (HoldKind::Loan, Access::Write) => {
            format!("bytes {start} to {end} are lent to someone who may write them; that loan must end first")
        }
        (HoldKind::Loan, Access::Read) => {
            format!("bytes {start} to {end} are lent to readers; that loan must end before they are written")
        }
        (_, Access::Write) => {
            format!("a writable host view is open on bytes {start} to {end}; close it first")
        }
        (_, Access::Read) => format!("a host view is open on bytes {start} to {end}; close it first"),
    };
    Error::new(ErrorKind::Busy, text)
}

/// The range is used by work that would have to be waited for.
pub(crate) fn in_flight(range: &Range<usize>) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("bytes {} to {} are used by a transfer in flight; wait for it first", range.start, range.end),
    )
}
