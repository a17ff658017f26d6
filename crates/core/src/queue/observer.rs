//! Observers of transfers; without one, no event costs anything.

use crate::{Error, TransferReport};

/// An event in the life of a transfer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TransferEvent<'a> {
    /// It was enqueued; the report has no times yet.
    Submitted(&'a TransferReport),
    /// Its bytes are in place.
    Completed(&'a TransferReport),
    /// It failed; the destination's bytes are undefined.
    Failed(&'a TransferReport, &'a Error),
    /// Its handle was dropped before it was complete; the transfer goes on.
    Abandoned(&'a TransferReport),
}

/// Receives events of transfers, on the thread that submits the transfer or observes its end. Must be quick
/// and must not submit.
pub trait Observer: Send + Sync + 'static {
    /// Called for each event of a transfer.
    fn transfer(&self, event: TransferEvent<'_>);
}
