//! The primitives of the allocator's shared state, in one place so that its model can replace them.

pub(crate) use parking_lot::{Mutex, MutexGuard};
