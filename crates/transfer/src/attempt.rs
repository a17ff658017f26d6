//! What a request asks of the manager, and what comes of it.

use transload_core::{DeviceId, Fence, Queue, TransferId, Turns, Unblocked};

use crate::TransferOptions;

/// How one transfer is to be done.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The same for every attempt.
    pub(crate) id: Option<TransferId>,
    pub(crate) options: TransferOptions,
    pub(crate) extras: Option<&'a Extras<'a>>,
}

impl<'a> Request<'a> {
    #[inline]
    pub(crate) fn new(options: TransferOptions, extras: Option<&'a Extras<'a>>) -> Self {
        Self { id: TransferId::if_traced(), options, extras }
    }
}

/// What few transfers ask for.
#[derive(Clone, Copy)]
pub(crate) struct Extras<'a> {
    /// What the bytes move after, besides conflicting work.
    pub(crate) after: &'a [Fence],
    /// The caller's queue, in the place of a leased one.
    pub(crate) queue: Option<&'a dyn Queue>,
}

/// What a task brings whose thread must not be blocked.
pub(crate) struct Task<'a> {
    pub(crate) turns: &'a Turns,
    /// Whether the calling thread may take its time, though not wait for work in flight.
    pub(crate) may_be_slow: bool,
    /// Why nothing was submitted.
    pub(crate) obstacle: Option<Obstacle>,
}

/// Why nothing was submitted for a task.
pub(crate) enum Obstacle {
    /// It is worth retrying when this completes.
    Blocked(Unblocked),
    /// It may take the calling thread long. The device is the lane.
    Slow(DeviceId),
    /// The caller's queue is another thread's.
    QueueOfAnotherThread,
}
