//! Addresses of host and device memory.

use std::ptr::NonNull;

/// An address.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// An address that the host can use.
    Host(NonNull<u8>),
    /// An address that only the device can use.
    Device(u64),
}
