//! The record of an ended transfer.

use std::fmt;

use transload_core::{ErrorKind, TransferReport};

/// How a transfer ended, as far as observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Outcome {
    /// Its bytes are in place.
    Completed,
    /// It failed with this error; the destination's bytes are undefined.
    Failed(ErrorKind),
    /// Its handle was dropped: it went on, and its end was not observed.
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

/// A transfer that ended for its submitter.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TransferRecord {
    /// Sequence number of the end, from 0, in the order in which the log was notified.
    pub sequence: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The transfer's report.
    pub report: TransferReport,
}

impl fmt::Display for TransferRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}: {}", self.sequence, self.outcome, self.report)
    }
}
