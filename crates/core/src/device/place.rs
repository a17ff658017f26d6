//! Where bytes are: a kind of memory on a device; and from where to where they go.

use std::fmt;

use crate::DeviceId;

/// What kind of memory, which decides who can reach it and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Ordinary host memory.
    Pageable,
    /// Host memory that stays where it is, so that a device's copy engine reaches it.
    Pinned,
    /// Pinned host memory that the device also sees in its own address space.
    Mapped,
    /// The device's own memory.
    Device,
    /// Memory that migrates between host and device (CUDA's managed memory).
    Unified,
}

impl MemoryKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Pageable, Self::Pinned, Self::Mapped, Self::Device, Self::Unified];

    /// Whether the host can address memory of this kind.
    #[must_use]
    pub fn is_host_visible(self) -> bool {
        self != Self::Device
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pageable => "pageable",
            Self::Pinned => "pinned",
            Self::Mapped => "mapped",
            Self::Device => "device",
            Self::Unified => "unified",
        })
    }
}

/// A kind of memory on a device. Pinned and mapped memory is the host's: its device is [`DeviceId::Cpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Whose memory it is.
    pub device: DeviceId,
    /// Of what kind.
    pub kind: MemoryKind,
}

impl Place {
    /// A place.
    #[must_use]
    pub const fn new(device: DeviceId, kind: MemoryKind) -> Self {
        Self { device, kind }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.kind)
    }
}

/// From one place to another; statistics and costs are kept per path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferPath {
    /// Where the bytes come from.
    pub src: Place,
    /// Where they go.
    pub dst: Place,
}

impl TransferPath {
    /// A path.
    #[must_use]
    pub const fn new(src: Place, dst: Place) -> Self {
        Self { src, dst }
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.src, self.dst)
    }
}
