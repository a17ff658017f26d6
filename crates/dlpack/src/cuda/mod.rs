//! CUDA support: ordering on streams, and pointer checks by the driver.

mod loan_end;
mod order;
mod pointer;

pub(crate) use loan_end::{end_after_stream, retry_pending_ends};
pub use order::protocol_stream;
