//! What would be done for a transfer, without doing it.

use std::{fmt, time::Duration};

use transload_core::{
    CostBasis, DeviceId, QueuedBefore, Rejections, TransferMethod, TransferPath, TransferReport,
};

/// What a transfer would do. The transfer's own report says the same where nothing was registered and no cost was set in
/// between: both come from one planner.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// From where to where.
    pub path: TransferPath,
    /// How many bytes.
    pub bytes: u64,
    /// How.
    pub method: TransferMethod,
    /// Whose queue would do the work.
    pub lane: DeviceId,
    /// How many queues would take part.
    pub lanes: u32,
    /// Into how many pieces the bytes would be cut.
    pub chunks: u32,
    /// The predicted time.
    pub predicted: Duration,
    /// Like [`TransferReport::queued`].
    pub queued: u64,
    /// What the prediction rests on.
    pub basis: CostBasis,
    /// What cannot be taken, and why.
    pub rejected: Rejections,
    /// What could be taken and is not, fastest first. None is predicted to be faster on an idle device, unless the transfer
    /// passes by a copy engine's queue (see [`TransferOptions::priority`](crate::TransferOptions::priority)).
    pub alternatives: Vec<Alternative>,
    /// Whether a software driver plays the device.
    pub simulated: bool,
}

/// A method that applies and was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alternative {
    /// Which.
    pub method: TransferMethod,
    /// The time that it is predicted to take.
    pub predicted: Duration,
    /// What the prediction rests on.
    pub basis: CostBasis,
}

impl Plan {
    pub(crate) fn new(report: TransferReport, alternatives: Vec<Alternative>) -> Self {
        Self {
            path: report.path,
            bytes: report.bytes,
            method: report.method,
            lane: report.lane,
            lanes: report.lanes,
            chunks: report.chunks,
            predicted: report.predicted,
            queued: report.queued,
            basis: report.basis,
            rejected: report.rejected,
            alternatives,
            simulated: report.simulated,
        }
    }

    /// Returns whether a transfer was done as planned, whatever was queued before the copy engine at the time.
    #[must_use]
    pub fn agrees_with(&self, report: &TransferReport) -> bool {
        let done = Self::new(report.clone(), self.alternatives.clone());
        *self == Self { queued: self.queued, ..done }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, bytes, method, lane, lanes, chunks, predicted, basis, .. } = self;
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
            // Only what passes by a copy engine's queue is not the fastest.
            let why =
                if *predicted < self.predicted { "faster, but waits for a copy engine" } else { "slower" };
            write!(f, "\n  {why}: {method}: about {predicted:.1?} ({basis})")?;
        }
        self.rejected.iter().try_for_each(|rejected| write!(f, "\n  rejected: {rejected}"))
    }
}

/// A number with its noun, in the plural unless it is 1.
fn counted(number: u32, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, MemoryKind, Place};

    use super::*;

    #[test]
    fn plan_counts_lanes_and_chunks_in_words_that_fit() {
        let path = |kind| Place::new(DeviceId::Cpu, kind);
        let path = TransferPath::new(path(MemoryKind::Pageable), path(MemoryKind::Pinned));
        let mut report = TransferReport::planned(path, TransferMethod::HostStaged, DeviceId::Cpu, 64);
        for (lanes, chunks, said) in
            [(1, 13, ", 1 lane, 13 chunks:"), (2, 1, ", 2 lanes, 1 chunk:"), (1, 1, "on cpu: ")]
        {
            (report.lanes, report.chunks) = (lanes, chunks);
            let plan = Plan::new(report.clone(), Vec::new()).to_string();
            assert!(plan.contains(said), "{plan}");
        }
    }
}
