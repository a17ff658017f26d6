//! Why a range without a fence is held, and the errors for conflicting work.

use std::ops::Range;

use crate::{Access, Error, ErrorKind};

/// Why a range without a fence is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    /// Claimed: a thread is enqueueing the operation.
    Pending,
    /// A host view is open.
    View,
    /// Lent to a user outside of this library.
    Loan,
}

/// Returns the error for a range held by a view or a loan.
pub(crate) fn busy(range: &Range<usize>, kind: HoldKind, open: Access) -> Error {
    let Range { start, end } = range;
    let text = match (kind, open) {
        (HoldKind::Loan, Access::Write) => {
            format!("bytes {start} to {end} are lent for writing; end the loan first")
        }
        (HoldKind::Loan, Access::Read) => {
            format!("bytes {start} to {end} are lent for reading; end the loan before writing them")
        }
        (_, Access::Write) => {
            format!("a writable host view is open on bytes {start} to {end}; close it first")
        }
        (_, Access::Read) => format!("a host view is open on bytes {start} to {end}; close it first"),
    };
    Error::new(ErrorKind::Busy, text)
}

/// Returns the error for a range used by work in flight.
pub(crate) fn in_flight(range: &Range<usize>) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("bytes {} to {} are used by a transfer in flight; wait for it first", range.start, range.end),
    )
}
