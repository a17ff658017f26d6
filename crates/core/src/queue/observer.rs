//! Hears what happens, without a cost where nobody listens.

use crate::{Error, TransferReport};

/// What an observer hears of a transfer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TransferEvent<'a> {
    /// Enqueued; times in the report are not yet known.
    Submitted(&'a TransferReport),
    /// Its bytes are in place.
    Completed(&'a TransferReport),
    /// It failed; the destination's bytes are undefined.
    Failed(&'a TransferReport, &'a Error),
    /// Its handle was dropped before its end; it runs on.
    Abandoned(&'a TransferReport),
}

/// Listens to transfers. Called on the thread that submits or observes the end; must be quick and must not submit.
pub trait Observer: Send + Sync + 'static {
    /// Something happened to a transfer.
    fn transfer(&self, event: TransferEvent<'_>);
}
