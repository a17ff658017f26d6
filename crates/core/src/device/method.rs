//! The five transfer methods, fills, and the reasons for rejecting a method.

use std::fmt;

use smallvec::SmallVec;

/// The method that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TransferMethod {
    /// One copy by the queue, from or to the caller's memory.
    DirectCopy,
    /// Through pinned host memory, in chunks, by several threads and queues.
    HostStaged,
    /// One side is migrating memory, prefetched to where it is needed.
    UnifiedMemory,
    /// Between devices without the host.
    PeerToPeer,
    /// The destination's device uses the bytes in place.
    ZeroCopy,
    /// No transfer: a queue writes a pattern. Only in reports of a stream's own fills.
    Fill,
}

impl TransferMethod {
    /// All methods of transfers.
    pub const ALL: [Self; 5] =
        [Self::DirectCopy, Self::HostStaged, Self::UnifiedMemory, Self::PeerToPeer, Self::ZeroCopy];

    /// Returns the name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DirectCopy => "DirectCopy",
            Self::HostStaged => "HostStaged",
            Self::UnifiedMemory => "UnifiedMemory",
            Self::PeerToPeer => "PeerToPeer",
            Self::ZeroCopy => "ZeroCopy",
            Self::Fill => "Fill",
        }
    }

    /// Returns the index in [`ALL`](Self::ALL); `Fill` follows them.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for TransferMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a method cannot be used for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RejectReason {
    /// No queue of either side copies between these places.
    NoQueue,
    /// Both sides are the same device.
    SameDevice,
    /// Neither side is a device other than the host.
    NoDevice,
    /// Neither side is unified memory.
    NotUnified,
    /// The two devices cannot access each other's memory.
    NoPeerAccess,
    /// The devices can access each other's memory, but a test pattern copied there and back was changed.
    PeerCorrupts,
    /// The devices can access each other's memory, but enabling or verifying that failed, or this memory grants no access, which
    /// rows need. If the error may be temporary, such as a lack of memory, a later transfer tries again.
    PeerUnverified,
    /// Peers copy between their own memory, and one side is another kind.
    NotDeviceMemory,
    /// Peers copy between their own memory, and one side is the host.
    HostSide,
    /// The host's side is not pageable: staging would only add a copy.
    AlreadyPinned,
    /// The device's backend offers no pinned memory for staging, or none is left. Between two devices pageable memory of the host would do, but
    /// there is no backend for it.
    NoStagingMemory,
    /// The device cannot use the memory in place: it is not mapped into its address space.
    NotMapped,
    /// A queue on its way does not copy one of these buffers, or not this range of it, such as one that a framework made without a usage.
    BufferRefused,
    /// The device's driver rejects the kernel that would copy in place.
    NoKernel,
    /// The device cannot use managed memory concurrently with the host.
    NoConcurrentAccess,
    /// It needs host threads or pageable memory, or migrates pages: no queue records such work.
    NotRecordable,
    /// The caller's queue cannot take it: it works on several queues, or on those of another device.
    NotOnQueue,
    /// The caller excluded it, or chose another one.
    Forbidden,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoQueue => "no queue of either side copies between these places",
            Self::SameDevice => "both sides are on the same device",
            Self::NoDevice => "both sides are on the host",
            Self::NotUnified => "neither side is unified memory",
            Self::NoPeerAccess => "the devices cannot access each other's memory",
            Self::PeerCorrupts => "a test pattern copied between the devices was changed",
            Self::PeerUnverified => "enabling or verifying peer access failed, or the memory grants none",
            Self::NotDeviceMemory => "one side is not a device's own memory",
            Self::HostSide => "one side is the host",
            Self::AlreadyPinned => "the host's side is not pageable: staging would only add a copy",
            Self::NoStagingMemory => {
                "no pinned memory for staging: the device's backend offers none, or what it may pin is in use"
            }
            Self::NotMapped => "the memory is not mapped into the device's address space",
            Self::BufferRefused => {
                "a queue on its way does not copy one of these buffers, or not this range of it"
            }
            Self::NoKernel => "the device's driver rejects the kernel that copies in place",
            Self::NoConcurrentAccess => "the device cannot use managed memory concurrently with the host",
            Self::NotRecordable => {
                "work that needs host threads or pageable memory, or migrates pages, cannot be recorded"
            }
            Self::NotOnQueue => {
                "the caller's stream cannot take it: it needs several streams, or one of another device"
            }
            Self::Forbidden => "excluded by the caller",
        })
    }
}

/// A rejected method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rejected {
    /// Transfer method.
    pub method: TransferMethod,
    /// Reason of the rejection.
    pub reason: RejectReason,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.method, self.reason)
    }
}

/// The rejected methods; stored inline, since there are only five methods.
pub type Rejections = SmallVec<[Rejected; 5]>;
