//! A plain block: an address, a length, and a handle to free it quickly.

use std::fmt;

use transload_core::{Error, ErrorKind};

use super::arena::Handle;

/// A plain block that owns nothing. It is valid until it is freed or the allocator's last handle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBlock {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) allocator: u64,
    pub(super) handle: Handle,
    pub(super) arena: u32,
}

impl StreamBlock {
    /// Returns its address, a multiple of 512: the device's, or the host's for pinned memory.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the requested size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Names a block by its [`StreamBlock`] or its address.
#[derive(Clone, Copy, Debug)]
pub enum BlockRef {
    /// The value that the allocation returned.
    Block(StreamBlock),
    /// Its address. A double free by address cannot be detected if the address was allocated again in between.
    Address(u64),
}

impl From<StreamBlock> for BlockRef {
    fn from(block: StreamBlock) -> Self {
        Self::Block(block)
    }
}

impl From<u64> for BlockRef {
    fn from(address: u64) -> Self {
        Self::Address(address)
    }
}

impl BlockRef {
    pub(super) fn address(self) -> u64 {
        match self {
            Self::Block(block) => block.address,
            Self::Address(address) => address,
        }
    }
}

/// Why a block was not freed or its use not recorded: the [`cause`](Error::cause) of that error. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FreeError {
    /// It was already freed.
    AlreadyFreed,
    /// No block of this allocator starts at the address.
    NeverAllocated,
    /// It was allocated on another stream, and no use on this one was recorded.
    WrongStream,
    /// A buffer owns the memory and frees it when dropped.
    OwnedByBuffer,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyFreed => "it was freed before",
            Self::NeverAllocated => "no block of this allocator begins there",
            Self::WrongStream => {
                "it was allocated on another stream: free it there, or record its use on this one first"
            }
            Self::OwnedByBuffer => {
                "it belongs to a buffer, which orders its uses by itself and frees it when dropped: drop the buffer"
            }
        })
    }
}

impl std::error::Error for FreeError {}

impl FreeError {
    #[cold]
    pub(super) fn at(self, address: u64) -> Error {
        Error::caused_by(ErrorKind::InvalidArgument, format!("block {address:#x} is left as it is"), self)
    }
}
