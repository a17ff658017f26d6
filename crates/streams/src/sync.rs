//! The primitives of the state that several threads share; the models of `tests/loom` put loom's in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
