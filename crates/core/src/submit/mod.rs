//! From an operation to a queue: claims on buffers, submission, and what a task awaits where a thread would block.

pub(crate) mod claim;
pub(crate) mod fill;
pub(crate) mod operation;
pub(crate) mod pattern;
pub(crate) mod recording;
pub(crate) mod submission;
pub(crate) mod unblocked;
