//! The allocator on a driver that fails, is slow, or checks for races.

mod failures;
pub(crate) mod races;
mod random;
mod released_streams;
mod stream_lifetimes;
