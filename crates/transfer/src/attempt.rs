//! What a transfer brings besides its options, and why nothing was submitted.

use std::cell::Cell;

use transload_core::{DeviceId, Error, ErrorKind, Fence, Queue, Transfer, TransferId, Turns, Unblocked};

/// What few transfers bring. Behind one reference, so that the others pay for a null pointer only.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extras<'a> {
    /// The same for every attempt; `None` if nothing is traced.
    pub(crate) id: Option<TransferId>,
    /// What the bytes move after, besides conflicting work.
    pub(crate) after: &'a [Fence],
    /// The caller's queue, in the place of a leased one.
    pub(crate) queue: Option<&'a dyn Queue>,
    /// The task that submits, if its thread must not be blocked.
    pub(crate) task: Option<&'a Task<'a>>,
}

/// What a task brings whose thread must not be blocked.
pub(crate) struct Task<'a> {
    /// Its turns in the conflicts' wait queues.
    pub(crate) turns: &'a Turns,
    /// Whether the calling thread may take its time, though not wait for work in flight.
    pub(crate) may_be_slow: bool,
    /// Why nothing was submitted.
    pub(crate) obstacle: Cell<Option<Obstacle>>,
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

/// What the manager returns to a task for which nothing was submitted, and which knows why.
#[cold]
pub(crate) fn would_block() -> Transfer {
    Transfer::refused(Error::new(ErrorKind::Busy, "the buffers are in use by earlier work; retry later"))
}
