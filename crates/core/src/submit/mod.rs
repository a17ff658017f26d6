//! From an operation to a queue: claims on buffers, submission, and the futures that tasks await instead of
//! blocking.

pub(crate) mod batch;
pub(crate) mod blocks;
pub(crate) mod cast;
mod cells;
pub(crate) mod claim;
pub(crate) mod fill;
pub(crate) mod operation;
pub(crate) mod pattern;
pub(crate) mod recording;
mod starts;
pub(crate) mod submission;
pub(crate) mod unblocked;
