//! What the crate's shared state is made of: std's and parking_lot's primitives, for which `tests/loom` puts loom's.

pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence},
};

pub(crate) use parking_lot::{Mutex, MutexGuard};
