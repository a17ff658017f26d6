//! What a transfer would do.

use std::{fmt, ops::Deref, time::Duration};

use transload_core::{CostBasis, QueuedBefore, TransferMethod, TransferReport};

use crate::planning::candidate::Candidate;

/// What a transfer would do: its report (a plan dereferences to it) with all times zero, and the alternatives. The
/// transfer's own report agrees, since both come from one planner, unless a backend was registered or a cost set in between, or the
/// method could not be used when the transfer was submitted, such as staging while there is no pinned memory for it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Plan {
    #[cfg_attr(feature = "serde", serde(flatten))]
    report: TransferReport,
    /// Methods that apply and were not chosen, fastest first. None is predicted to be faster on an idle device, except
    /// ZeroCopy, since its kernel waits for other kernels, and what a transfer avoids that bypasses a copy engine's queue
    /// (see [`TransferOptions::priority`](crate::TransferOptions::priority)).
    pub alternatives: Vec<Alternative>,
}

impl Deref for Plan {
    type Target = TransferReport;

    fn deref(&self) -> &TransferReport {
        &self.report
    }
}

/// A method that applies and was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Alternative {
    /// The method.
    pub method: TransferMethod,
    /// Its predicted time.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "predicted_seconds", with = "transload_core::serde_seconds")
    )]
    pub predicted: Duration,
    /// Origin of the cost that the prediction uses.
    pub basis: CostBasis,
    /// Why it was not chosen.
    pub reason: NotChosen,
}

/// Why a method that applies was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum NotChosen {
    /// It is predicted to take longer, or as long and is the less usual one.
    Slower,
    /// Its kernel is faster on an idle device, but waits for the kernels that run there.
    WaitsForKernels,
    /// It is faster on an idle device, but a copy engine that it needs has other copies to do first.
    WaitsForEngine,
}

impl fmt::Display for NotChosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slower => "slower",
            Self::WaitsForKernels => "faster alone, but waits for other kernels",
            Self::WaitsForEngine => "faster, but waits for a copy engine",
        })
    }
}

impl Alternative {
    pub(crate) fn new(candidate: &Candidate, predicted: Duration, chosen: Duration) -> Self {
        let reason = match candidate.is_in_place() {
            _ if predicted >= chosen => NotChosen::Slower,
            true => NotChosen::WaitsForKernels,
            false => NotChosen::WaitsForEngine,
        };
        Self { method: candidate.method(), predicted, basis: candidate.info.cost.basis, reason }
    }
}

impl Plan {
    pub(crate) fn new(report: TransferReport, alternatives: Vec<Alternative>) -> Self {
        Self { report, alternatives }
    }

    /// Returns whether a transfer went as planned, ignoring its id, times, and what was queued for the copy engine.
    #[must_use]
    pub fn agrees_with(&self, report: &TransferReport) -> bool {
        let mut planned = self.report.clone();
        (planned.id, planned.queued) = (report.id, report.queued);
        (planned.submitting, planned.elapsed, planned.moving) =
            (report.submitting, report.elapsed, report.moving);
        planned == *report
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransferReport { path, bytes, method, lane, lanes, chunks, predicted, basis, .. } = &self.report;
        write!(f, "{bytes} bytes {path} by {method} on {lane}")?;
        if (*lanes, *chunks) != (1, 1) {
            write!(f, ", {}, {}", counted(*lanes, "lane"), counted(*chunks, "chunk"))?;
        }
        write!(f, ": about {predicted:.1?} ({basis})")?;
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        if self.queued > 0 {
            write!(f, "\n  {}", QueuedBefore(self.queued))?;
        }
        for Alternative { method, predicted, basis, reason } in &self.alternatives {
            write!(f, "\n  {reason}: {method}: about {predicted:.1?} ({basis})")?;
        }
        self.rejected.iter().try_for_each(|rejected| write!(f, "\n  rejected: {rejected}"))
    }
}

/// A number with its noun, in the plural unless it is 1.
fn counted(number: u32, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
