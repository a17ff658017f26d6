//! CUDA's part: streams that wait before and after a consumer, and what the driver knows of a pointer.

mod loan_end;
mod order;
mod pointer;

pub(crate) use loan_end::{end_after_stream, retry_pending_ends};
pub use order::protocol_stream;
