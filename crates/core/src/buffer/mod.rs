//! Memory and views of it: buffers, host views, loans, and what happens to memory that is dropped while in use.

pub(crate) mod alias;
pub(crate) mod borrowed;
pub(crate) mod buffer_id;
pub(crate) mod guards;
pub(crate) mod host_bytes;
pub(crate) mod host_view;
pub(crate) mod loan;
pub(crate) mod neighbours;
pub(crate) mod pair_list;
pub(crate) mod range_guard;
pub(crate) mod raw_buffer;
pub(crate) mod reclaim;
pub(crate) mod registration_slot;
pub(crate) mod spare_buffer;
pub(crate) mod storage;
pub(crate) mod typed_buffer;
pub(crate) mod use_epoch;
pub(crate) mod weak_buffer;
