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

/// Receives events of transfers, on the thread that submits the transfer or observes its end. Must be quick
/// and must not submit.
pub trait Observer: Send + Sync + 'static {
    /// Called for each event of a transfer.
    fn transfer(&self, event: TransferEvent<'_>);

    /// Returns whether it takes the events of the next transfer, of so many bytes. Asked once, on the submitting thread and before anything of
    /// it is submitted; of a list that turns out to be copied pair by pair, again for each pair. A transfer that it takes has an
    /// [id](TransferReport::id) and times. Of others it is told failures only, and nothing is done for its sake. `true` by default.
    fn wants(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }
}
