//! Operations in stream queues.

use std::{ffi::c_void, sync::Arc};

use crate::{
    access::AccessKind,
    clock::Clock,
    device::Residency,
    host_kernel::{HostKernel, KernelAccess, KernelMemory, Launch},
    memory::Memory,
    timing::Engine,
};

/// A position in a stream: reached when the stream has completed the operation there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) position: u64,
}

/// An operation in a stream.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) position: u64,
    pub(crate) after: Vec<Point>,
    /// Virtual time of the call.
    pub(crate) enqueued_at: u64,
    /// Vector clock of the operation, if accesses are recorded.
    pub(crate) clock: Option<Arc<Clock>>,
    pub(crate) work: Work,
    /// Engine and duration; set when the first piece runs.
    pub(crate) cost: Option<(Engine, u64)>,
    /// The call's number in CUPTI's records; 0 if nothing is recorded.
    pub(crate) call: u32,
    /// Bytes and number of the copies, before they ran.
    pub(crate) copied: (u64, u64),
}

/// The kind of an operation, with its parameters.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Only waits for its dependencies.
    Wait,
    /// Copies, in no particular order.
    Copies(Vec<Copy>),
    Fill(Fill),
    /// Sets an event's time.
    Record {
        event: u64,
        generation: u64,
    },
    Host(HostCall),
    /// Waits until the host has written a word: until its difference to `value` is not negative, or it equals `value`.
    Word {
        address: u64,
        value: u32,
        equal: bool,
    },
    /// Writes a word that the host polls.
    WriteWord {
        address: u64,
        value: u32,
    },
    Kernel(Box<KernelRun>),
    /// Makes memory of `cuMemAllocAsync` live.
    Allocate {
        base: u64,
        id: u64,
        bytes: usize,
    },
    /// Frees memory of `cuMemFreeAsync`.
    Free {
        base: u64,
        id: u64,
        bytes: usize,
    },
    /// Migrates pages.
    Prefetch {
        address: u64,
        bytes: usize,
        to: Residency,
    },
}

/// The source or destination of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// An address known to the driver, resolved when the copy runs.
    Address(u64),
    /// The caller's pageable memory. The call does not return before the copy is complete.
    Pageable(usize),
    /// Bytes read from the caller's memory during the call.
    Staged(Vec<u8>),
}

/// A copy of `height` rows of `width` bytes.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) from: Operand,
    pub(crate) to: Operand,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) from_pitch: usize,
    pub(crate) to_pitch: usize,
    /// Bytes (of a single row) or rows copied.
    pub(crate) done: usize,
    /// Whether the peer link corrupts a byte.
    pub(crate) corrupts: bool,
}

impl Copy {
    pub(crate) fn linear(from: Operand, to: Operand, bytes: usize) -> Self {
        Self { from, to, width: bytes, height: 1, from_pitch: 0, to_pitch: 0, done: 0, corrupts: false }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.width * self.height
    }
}

/// A fill of `width` elements.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) pattern: [u8; 4],
    pub(crate) element: usize,
    pub(crate) width: usize,
}

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A host function to call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: HostFunction,
    pub(crate) data: usize,
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub(crate) struct KernelRun {
    pub(crate) host_kernel: HostKernel,
    pub(crate) launch: Launch,
    /// Whether it may begin before the launch before it ends.
    pub(crate) is_early: bool,
}

impl KernelRun {
    /// Returns what the launch accesses, as far as it can be known from what memory holds now.
    pub(crate) fn accesses(&self, memory: &Memory) -> Vec<KernelAccess> {
        (self.host_kernel.accesses)(&self.launch, &KernelMemory::readable(memory))
    }
}

impl Work {
    /// Returns the ranges that the operation accesses, except staged bytes.
    pub(crate) fn accesses(&self, memory: &Memory) -> Vec<(u64, usize, AccessKind)> {
        match self {
            // The host reads a word by atomic operations.
            Self::Wait
            | Self::Record { .. }
            | Self::Host(_)
            | Self::Word { .. }
            | Self::WriteWord { .. }
            | Self::Prefetch { .. } => Vec::new(),
            Self::Copies(copies) => copies.iter().flat_map(copy_accesses).collect(),
            Self::Fill(fill) => vec![(fill.address, fill.width * fill.element, AccessKind::Write)],
            Self::Kernel(run) => run
                .accesses(memory)
                .into_iter()
                .map(|access| (access.address, access.bytes, access.kind))
                .collect(),
            Self::Allocate { base, bytes, .. } | Self::Free { base, bytes, .. } => {
                vec![(*base, *bytes, AccessKind::Write)]
            }
        }
    }
}

fn copy_accesses(copy: &Copy) -> Vec<(u64, usize, AccessKind)> {
    let mut found = Vec::new();
    let mut side = |place: &Operand, pitch: usize, kind| {
        let start = match place {
            Operand::Address(address) => *address,
            Operand::Pageable(address) => *address as u64,
            Operand::Staged(_) => return,
        };
        found.extend((0..copy.height as u64).map(|row| (start + row * pitch as u64, copy.width, kind)));
    };
    side(&copy.from, copy.from_pitch, AccessKind::Read);
    side(&copy.to, copy.to_pitch, AccessKind::Write);
    found
}
