//! Hints and automatic prefetch on devices of several kinds.

mod hint_calls;
mod hints;
mod prediction;
