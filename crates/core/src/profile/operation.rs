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
}

impl OperationKind {
    /// All kinds, in order of declaration.
    pub const ALL: [Self; 8] = [
        Self::Copy,
        Self::CopyBatch,
        Self::CopyKernel,
        Self::Cast,
        Self::Fill,
        Self::Prefetch,
        Self::Kernel,
        Self::Replay,
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
        let bytes = pairs.iter().fold(0_u64, |sum, (src, _)| sum.saturating_add(src.len() as u64));
        Self { kind, path, bytes, pieces: u32::try_from(pairs.len()).unwrap_or(u32::MAX) }
    }

    /// Describes a list of blocks, which a kernel copies.
    #[must_use]
    pub fn of_blocks(blocks: &crate::BlockList) -> Self {
        let path = blocks.pools().first().map(|(src, dst)| (src.place(), dst.place()));
        let pieces = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        Self { kind: OperationKind::CopyKernel, path, bytes: blocks.bytes(), pieces }
    }

    /// Describes an operation.
    #[must_use]
    pub fn of(operation: &Operation<'_>) -> Self {
        let one = |kind, path, bytes: usize| Self { kind, path, bytes: bytes as u64, pieces: 1 };
        match *operation {
            Operation::Copy { src, dst } | Operation::CopyPeer { src, dst } => {
                one(OperationKind::Copy, Some((src.place(), dst.place())), src.len())
            }
            Operation::CopyPitched { src, dst, rows } => {
                let pieces = rows.height.saturating_mul(rows.planes);
                let bytes = rows.width.saturating_mul(pieces);
                let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
                Self { pieces, ..one(OperationKind::Copy, Some((src.place(), dst.place())), bytes) }
            }
            Operation::CopyBatch { pairs } => Self::of_pairs(OperationKind::CopyBatch, pairs),
            Operation::CopyInPlace { src, dst } => {
                one(OperationKind::CopyKernel, Some((src.place(), dst.place())), src.len())
            }
            Operation::CopyBatchInPlace { pairs } => Self::of_pairs(OperationKind::CopyKernel, pairs),
            Operation::Cast { src, dst, .. } => {
                one(OperationKind::Cast, Some((src.place(), dst.place())), dst.len())
            }
            Operation::Fill { dst, .. } => one(OperationKind::Fill, None, dst.len()),
            Operation::Prefetch { buffer, .. } | Operation::PrefetchToNode { buffer, .. } => {
                one(OperationKind::Prefetch, None, buffer.len())
            }
            Operation::Replay { .. } => Self::of_kind(OperationKind::Replay),
        }
    }
}
