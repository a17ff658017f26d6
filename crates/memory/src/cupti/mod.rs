//! NVIDIA's tools library CUPTI: migrations of unified memory, and what the engines of devices did.

mod activity;
pub(crate) mod library;
mod operation_calls;
mod recording;
pub(crate) mod session;

pub use operation_calls::OperationCalls;
pub use recording::ActivityRecording;
