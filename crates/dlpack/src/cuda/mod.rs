//! CUDA support: ordering on streams, and pointer checks by the driver.

mod order;
mod pointer;

pub use order::protocol_stream;
