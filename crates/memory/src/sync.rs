//! What shared state is made of: std's primitives, for which `tests/loom` puts loom's.

pub(crate) use std::sync::Arc;
