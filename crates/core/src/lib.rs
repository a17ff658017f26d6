//! Vocabulary and traits.

pub mod host_access;
