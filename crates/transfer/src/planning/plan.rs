//! What a transfer would do.

use std::{fmt, ops::Deref, time::Duration};

use transload_core::{CostBasis, QueuedBefore, TransferMethod, TransferReport};

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
}

impl Plan {
    pub(crate) fn new(report: TransferReport, alternatives: Vec<Alternative>) -> Self {
        Self { report, alternatives }
    }

    /// Returns whether a transfer went as planned, ignoring times and what was queued for the copy engine.
    #[must_use]
    pub fn agrees_with(&self, report: &TransferReport) -> bool {
        let mut planned = self.report.clone();
        planned.queued = report.queued;
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
        for Alternative { method, predicted, basis } in &self.alternatives {
            let why = match method {
                _ if *predicted >= self.predicted => "slower",
                TransferMethod::ZeroCopy => "faster alone, but waits for other kernels",
                _ => "faster, but waits for a copy engine",
            };
            write!(f, "\n  {why}: {method}: about {predicted:.1?} ({basis})")?;
        }
        self.rejected.iter().try_for_each(|rejected| write!(f, "\n  rejected: {rejected}"))
    }
}

/// A number with its noun, in the plural unless it is 1.
fn counted(number: u32, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
