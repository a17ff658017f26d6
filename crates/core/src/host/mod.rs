//! The host's memory: its size, and a hook that watches accesses to it.

pub mod host_access;
pub(crate) mod host_memory;
