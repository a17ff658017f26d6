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
        // A loan does not say what holds it.
        (HoldKind::Loan, access) => {
            let purpose = if access == Access::Write { "writing" } else { "reading" };
            format!(
                "bytes {start} to {end} of the allocation are in use by other code, for {purpose}; first end the `StreamUse` (`end()`), or \
                 drop the exported tensor, registered buffer or `Loan`"
            )
        }
        (_, Access::Write) => {
            format!("bytes {start} to {end} of the allocation are in a writable host view; drop it first")
        }
        (_, Access::Read) => {
            format!(
                "bytes {start} to {end} of the allocation are in a host view; drop it before writing them"
            )
        }
    };
    Error::new(ErrorKind::Busy, text)
}

/// Returns the error for a range used by work in flight.
pub(crate) fn in_flight(range: &Range<usize>) -> Error {
    let Range { start, end } = range;
    Error::new(
        ErrorKind::Busy,
        format!("bytes {start} to {end} of the allocation are used by work in flight; wait for it first"),
    )
}
