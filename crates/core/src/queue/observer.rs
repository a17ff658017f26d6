//! Observers of transfers; without one, no event costs anything.

use std::time::Instant;

use crate::{Error, Fence, TransferReport};

/// An event in the life of a transfer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TransferEvent<'a> {
    /// It was enqueued.
    Submitted {
        /// Its report, which has no times yet but that of the submission.
        report: &'a TransferReport,
        /// When its submission began.
        begun: Instant,
        /// Its end, unless it is complete already.
        end: Option<&'a Fence>,
    },
    /// Its bytes are in place.
    Completed(&'a TransferReport),
    /// It failed; the destination's bytes are undefined.
    Failed(&'a TransferReport, &'a Error),
    /// Its handle was dropped before it was complete; the transfer goes on.
    Abandoned(&'a TransferReport),
}

/// What an observer wants of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// Only that it failed, if it does.
    Failure,
    /// Its events.
    Events,
    /// Its events, and that a [sink](crate::OperationSink) is given all of its operations with their times.
    Times,
}

/// Receives events of transfers, on the thread that submits the transfer or observes its end. Must be quick
/// and must not submit.
pub trait Observer: Send + Sync + 'static {
    /// Called for each event of a transfer.
    fn transfer(&self, event: TransferEvent<'_>);

    /// Returns what it wants of the next transfer, of so many bytes. Asked once, on the submitting thread and before anything of
    /// it is submitted. A list of one path is one transfer, also if it is copied pair by pair, but one of which only failures are wanted fails for
    /// each of its pairs then. One of which it wants the events
    /// has an [id](TransferReport::id) and times. For others nothing is done for its sake. [`Wanted::Events`] by default.
    fn wants(&self, bytes: u64) -> Wanted {
        let _ = bytes;
        Wanted::Events
    }
}
