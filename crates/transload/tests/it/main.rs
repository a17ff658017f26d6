//! What the facade promises: discovery never fails for want of a GPU, absence is explained, drained means empty.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod discover;
