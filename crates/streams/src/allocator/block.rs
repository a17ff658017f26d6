//! A block as a framework sees it: an address, a length, and what is needed to give it back quickly.

use std::fmt;

use transload_core::{Error, ErrorKind};

use super::arena::Handle;

/// A block of the raw layer: a plain value that owns nothing. It stays valid until it is freed or the allocator's last
/// handle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBlock {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) allocator: u64,
    pub(super) handle: Handle,
    pub(super) arena: u32,
}

impl StreamBlock {
    /// Where it begins, a multiple of 512: the device's address, or the host's for pinned memory.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes were asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Says which block is meant: a [`StreamBlock`], or only its address.
#[derive(Clone, Copy, Debug)]
pub enum BlockRef {
    /// The value that the allocation gave.
    Block(StreamBlock),
    /// The address at which it begins. A second free of an address that was given out again in between cannot be told from
    /// a first one.
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

/// Why a block was not freed, or a use of it not recorded: the [`cause`](Error::cause) of that error. Nothing was lost: what
/// was live still is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FreeError {
    /// It was freed before.
    AlreadyFreed,
    /// No block of this allocator begins there.
    NeverAllocated,
    /// It was allocated on another stream, and no use on this one was recorded.
    WrongStream,
    /// A buffer owns the memory: it ends with the buffer, which knows its uses by itself.
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
