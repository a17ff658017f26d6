//! CUDA's part: streams that wait before and after a consumer, and what the driver knows of a pointer.

mod ending;
mod order;
mod pointer;

pub(crate) use ending::{end_after, retry_ends};
pub use order::protocol_stream;
