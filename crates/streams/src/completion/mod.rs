//! Detects when a stream's work is complete, and notifies waiters.

pub(crate) mod after_capture;
pub(crate) mod callbacks;
pub(crate) mod capture_state;
pub(crate) mod end_word;
pub(crate) mod error_recovery;
pub(crate) mod external;
pub(crate) mod pending_events;
pub(crate) mod points;
pub(crate) mod reactor;
mod record;
pub(crate) mod registration;
pub(crate) mod slot;
pub(crate) mod stream_end;
pub(crate) mod stream_events;
pub(crate) mod timeline;
pub(crate) mod waiters;
pub(crate) mod wakers;
pub(crate) mod words;
