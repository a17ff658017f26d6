//! Synchronisation primitives: std's, replaced by loom's in `tests/loom`.

pub(crate) use std::sync::Arc;
