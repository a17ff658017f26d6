//! One end of a transfer, as it was reported.

use std::fmt;

use transload_core::{ErrorKind, TransferReport};

/// How a transfer ended, as far as anyone saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Its bytes are in place.
    Completed,
    /// It failed for this reason; the destination's bytes are undefined.
    Failed(ErrorKind),
    /// Its handle was dropped: it ran on, and nobody saw how it ended.
    Abandoned,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("completed"),
            Self::Failed(kind) => write!(f, "failed ({kind:?})"),
            Self::Abandoned => f.write_str("abandoned"),
        }
    }
}

/// A transfer that is over for its submitter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TransferRecord {
    /// Counts ends from 0, in the order in which the log heard of them.
    pub sequence: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it did.
    pub report: TransferReport,
}

impl fmt::Display for TransferRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}: {}", self.sequence, self.outcome, self.report)
    }
}
