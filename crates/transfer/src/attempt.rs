//! What a request asks of the manager, and what comes of it.

use transload_core::{Fence, Queue, Transfer, TransferId, Turns, Unblocked};

use crate::TransferOptions;

/// How one transfer is to be done.
#[derive(Clone, Copy, Default)]
pub(crate) struct Request<'a> {
    /// The same for every attempt.
    pub(crate) id: Option<TransferId>,
    pub(crate) options: TransferOptions,
    pub(crate) after: &'a [Fence],
    pub(crate) queue: Option<&'a dyn Queue>,
}

impl Request<'_> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { id: TransferId::if_traced(), ..Self::default() }
    }
}

/// What a task brings whose thread must not be blocked.
pub(crate) struct TaskTurns<'a> {
    pub(crate) turns: &'a Turns,
    /// Whether the calling thread may take its time, though not wait for work in flight.
    pub(crate) may_be_slow: bool,
}

/// What came of submitting.
#[allow(clippy::large_enum_variant, reason = "boxed, every transfer would allocate")]
pub(crate) enum Attempt {
    /// It was submitted or refused.
    Started(Transfer),
    /// Nothing was submitted; it is worth retrying when this completes.
    Blocked(Unblocked),
    /// Nothing was submitted, since that may take the calling thread long.
    Slow,
}
