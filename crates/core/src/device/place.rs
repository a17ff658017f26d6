//! Places: a kind of memory on a device; and paths from place to place.

use std::fmt;

use crate::DeviceId;

/// The kind of memory, which decides who can reach it and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MemoryKind {
    /// Ordinary host memory.
    Pageable,
    /// Page-locked host memory, which a device's copy engine can reach.
    Pinned,
    /// Pinned host memory that is also in the device's address space: host and device access it in place. Of a device of Vulkan that
    /// shares the host's memory, such as an integrated GPU, it is the memory of both, and nothing has to be copied.
    Mapped,
    /// The device's own memory.
    Device,
    /// Memory with one address for host and device that migrates to the one that accesses it (CUDA's managed memory), so that its owner
    /// prefetches it and advises the driver. Memory that a device only shares with the host does not migrate: that
    /// is [`Mapped`](Self::Mapped).
    Unified,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Pageable, Self::Pinned, Self::Mapped, Self::Device, Self::Unified];

    /// Returns whether the host can address memory of this kind.
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
    /// Device that has the memory.
    pub device: DeviceId,
    /// Kind of memory.
    pub kind: MemoryKind,
}

impl Place {
    /// Creates a place.
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

/// Source and destination; statistics and costs are kept per path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TransferPath {
    /// Source of the bytes.
    pub src: Place,
    /// Destination of the bytes.
    pub dst: Place,
}

impl TransferPath {
    /// Creates a path.
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
