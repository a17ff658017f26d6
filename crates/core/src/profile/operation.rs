//! What an operation does, in the terms of reports.

use std::fmt;

use crate::{Operation, Place};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OperationKind {
    /// A copy of one range, or of rows, by a copy engine or by the host.
    Copy,
    /// A batch of copies by copy engines.
    CopyBatch,
    /// A copy, or a batch of them, by a kernel; also a half of a list that goes through scratch memory.
    CopyKernel,
    /// A cast of element types.
    Cast,
    /// A fill.
    Fill,
    /// A migration of unified memory.
    Prefetch,
    /// A kernel of the caller.
    Kernel,
    /// A recording or graph, whatever it contains.
    Replay,
    /// A wait of the queue, on the device, for work of another queue. Queues of the host and of Vulkan wait as a part of their operations.
    Wait,
}

impl OperationKind {
    /// All kinds, in order of declaration.
    pub const ALL: [Self; 9] = [
        Self::Copy,
        Self::CopyBatch,
        Self::CopyKernel,
        Self::Cast,
        Self::Fill,
        Self::Prefetch,
        Self::Kernel,
        Self::Replay,
        Self::Wait,
    ];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::CopyBatch => "copy batch",
            Self::CopyKernel => "copy kernel",
            Self::Cast => "cast",
            Self::Fill => "fill",
            Self::Prefetch => "prefetch",
            Self::Kernel => "kernel",
            Self::Replay => "replay",
            Self::Wait => "wait",
        }
    }

    /// Returns whether it moves bytes from one place to another.
    #[must_use]
    pub fn is_transfer(self) -> bool {
        matches!(self, Self::Copy | Self::CopyBatch | Self::CopyKernel | Self::Cast | Self::Prefetch)
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationInfo {
    /// Its kind.
    pub kind: OperationKind,
    /// Source and destination of its first piece, if it moves bytes.
    pub path: Option<(Place, Place)>,
    /// Bytes written, or migrated; 0 if unknown, as for kernels and recordings.
    pub bytes: u64,
    /// Number of pieces, or of rows.
    pub pieces: u32,
}

impl OperationInfo {
    /// Describes an operation without bytes that are known.
    #[must_use]
    pub const fn of_kind(kind: OperationKind) -> Self {
        Self { kind, path: None, bytes: 0, pieces: 1 }
    }

    /// Describes a list of copies.
    #[must_use]
    pub fn of_pairs(kind: OperationKind, pairs: &[(crate::RawBuffer, crate::RawBuffer)]) -> Self {
        let path = pairs.first().map(|(src, dst)| (src.place(), dst.place()));
        Self { kind, path, bytes: bytes_of(pairs), pieces: u32::try_from(pairs.len()).unwrap_or(u32::MAX) }
    }

    /// Describes a list of blocks, which a kernel copies.
    #[must_use]
    pub fn of_blocks(blocks: &crate::BlockList) -> Self {
        let path = blocks.pools().first().map(|(src, dst)| (src.place(), dst.place()));
        let pieces = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        Self { kind: OperationKind::CopyKernel, path, bytes: blocks.bytes(), pieces }
    }

    /// Describes a half of a batch, which a kernel copies: from and to these places.
    #[must_use]
    pub fn of_half(pairs: &crate::HalfPairs<'_>, path: Option<(Place, Place)>) -> Self {
        let info = match pairs {
            crate::HalfPairs::Pairs(pairs) => Self::of_pairs(OperationKind::CopyKernel, pairs),
            crate::HalfPairs::Blocks(blocks, range) => {
                let bytes = (range.len() as u64).saturating_mul(blocks.block_bytes() as u64);
                let pieces = u32::try_from(range.len()).unwrap_or(u32::MAX);
                Self { kind: OperationKind::CopyKernel, path: None, bytes, pieces }
            }
        };
        Self { path, ..info }
    }

    /// Describes an operation.
    #[must_use]
    pub fn of(operation: &Operation<'_>) -> Self {
        let (kind, bytes) = Self::kind_and_bytes(operation);
        let (path, pieces) = match *operation {
            Operation::CopyBatch { pairs } | Operation::CopyBatchInPlace { pairs } => {
                return Self::of_pairs(kind, pairs);
            }
            Operation::Copy { src, dst }
            | Operation::CopyPeer { src, dst }
            | Operation::CopyInPlace { src, dst }
            | Operation::Cast { src, dst, .. } => (Some((src.place(), dst.place())), 1),
            Operation::CopyPitched { src, dst, rows } => {
                (Some((src.place(), dst.place())), rows.height.saturating_mul(rows.planes))
            }
            _ => (None, 1),
        };
        Self { kind, path, bytes, pieces: u32::try_from(pieces).unwrap_or(u32::MAX) }
    }

    /// Returns what is counted of an operation, which takes less than its description.
    #[must_use]
    #[inline]
    pub fn kind_and_bytes(operation: &Operation<'_>) -> (OperationKind, u64) {
        let (kind, bytes) = match *operation {
            Operation::Copy { src, .. } | Operation::CopyPeer { src, .. } => (OperationKind::Copy, src.len()),
            Operation::CopyPitched { rows, .. } => {
                let rows_bytes = rows.width.saturating_mul(rows.height.saturating_mul(rows.planes));
                (OperationKind::Copy, rows_bytes)
            }
            Operation::CopyInPlace { src, .. } => (OperationKind::CopyKernel, src.len()),
            Operation::Cast { dst, .. } => (OperationKind::Cast, dst.len()),
            Operation::Fill { dst, .. } => (OperationKind::Fill, dst.len()),
            Operation::Prefetch { buffer, .. } | Operation::PrefetchToNode { buffer, .. } => {
                (OperationKind::Prefetch, buffer.len())
            }
            Operation::Replay { .. } => (OperationKind::Replay, 0),
            Operation::CopyBatch { pairs } => return (OperationKind::CopyBatch, bytes_of(pairs)),
            Operation::CopyBatchInPlace { pairs } => return (OperationKind::CopyKernel, bytes_of(pairs)),
        };
        (kind, bytes as u64)
    }
}

fn bytes_of(pairs: &[(crate::RawBuffer, crate::RawBuffer)]) -> u64 {
    pairs.iter().fold(0, |sum, (src, _)| sum.saturating_add(src.len() as u64))
}
