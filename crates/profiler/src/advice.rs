//! Advice: what would take less time, and what tells that.

use std::fmt;

use transload_core::{CostBasis, DeviceId, TransferMethod, TransferPath};

use crate::report::{percent, time};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AdviceKind {
    /// Keep the host's side in pinned memory.
    PinHostMemory,
    /// Let another method be chosen.
    UseMethod(TransferMethod),
    /// Copy as lists what is copied one by one.
    UseLists {
        /// How many lists.
        lists: u64,
    },
    /// Enqueue copies on queues of their own: they were queued behind other work while their copy engine was idle. Told with
    /// [records of engines](crate::StreamProfiler::record_engines) only.
    UseIdleLink {
        /// How long it was idle while any of them was queued, in nanoseconds.
        idle_ns: u64,
    },
    /// Release pinned memory that is kept for later allocations, by draining the backend or by a limit: it was in no use at any reading.
    ReleasePinned,
    /// Free buffers of pinned memory that the caller holds: no operation, view or loan used them at any reading.
    FreePinned {
        /// How many.
        buffers: u64,
    },
    /// Prefetch unified memory before a device uses it: its accesses waited for page faults. Told with
    /// [records of engines](crate::StreamProfiler::record_engines) only.
    Prefetch {
        /// The device.
        device: DeviceId,
        /// How many groups of page faults.
        groups: u64,
    },
    /// Calibrate: transfers take longer than the built-in table says, these the most.
    Calibrate {
        /// What the table predicted, in nanoseconds.
        predicted_ns: u64,
    },
}

/// What the time of an alternative is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AdviceBasis {
    /// So many timed transfers of this profile that did it.
    Transfers(u64),
    /// Costs of this origin.
    Costs(CostBasis),
    /// Records of engines.
    Engines,
    /// So many readings of the backend's memory.
    Readings(u64),
}

/// What would have saved how much of the time of some timed transfers.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Advice {
    /// What to do.
    pub kind: AdviceKind,
    /// The name of the buffer of [`Prefetch`](AdviceKind::Prefetch), if it has one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub buffer: Option<String>,
    /// Path of the transfers; `None` for advice on memory.
    pub path: Option<TransferPath>,
    /// The method that moved them; `None` if it does not matter.
    pub method: Option<TransferMethod>,
    /// How many.
    pub transfers: u64,
    /// Their bytes, or those of the memory.
    pub bytes: u64,
    /// Their share of the bytes of all timed transfers.
    pub share: f64,
    /// Time in which at least one of them ran, by their device's clock, or a group of page faults was served.
    pub took_ns: u64,
    /// From the first to the last timed transfer in their direction, by that clock; for memory, from the first to the last reading or page fault.
    pub whole_ns: u64,
    /// What they would have taken less; `None` if nothing tells.
    pub saving_ns: Option<u64>,
    /// What tells it.
    pub basis: Option<AdviceBasis>,
    /// Whether a software driver moved them.
    pub simulated: bool,
}

impl Advice {
    /// Returns the saving in each second of [`whole_ns`](Self::whole_ns), in seconds.
    #[must_use]
    pub fn saving_per_second(&self) -> Option<f64> {
        let saving = self.saving_ns.filter(|_| self.whole_ns > 0)?;
        Some(saving as f64 / self.whole_ns as f64)
    }
}

/// A number with its noun, in the plural unless it is 1.
fn counted(number: u64, noun: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{number} {noun}{}", if number == 1 { "" } else { "s" }))
}

impl fmt::Display for AdviceBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transfers(count) => write!(f, "by {} that did so", counted(*count, "timed transfer")),
            Self::Costs(CostBasis::User) => f.write_str("by costs that the user set"),
            Self::Costs(CostBasis::Refined) => f.write_str("by costs corrected by transfers"),
            Self::Costs(_) => f.write_str("by costs measured here"),
            Self::Engines => f.write_str("by records of the engines"),
            Self::Readings(count) => write!(f, "by {}", counted(*count, "reading")),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, transfers, bytes, took_ns, basis, .. } = self;
        let simulated = if self.simulated { " (simulated)" } else { "" };
        let Some(path) = path else {
            self.of_memory(f)?;
            basis.iter().try_for_each(|basis| write!(f, ", {basis}"))?;
            return f.write_str(simulated);
        };
        let share = percent(Some(self.share));
        write!(f, "{share} of the timed bytes, {} {path}", counted(*transfers, "transfer"))?;
        if let Some(method) = self.method {
            write!(f, " by {method}")?;
        }
        write!(f, ", took {}", time(*took_ns))?;
        if *took_ns > 0 {
            write!(f, " ({:.1} GB/s)", *bytes as f64 / *took_ns as f64)?;
        }
        match self.kind {
            AdviceKind::ReleasePinned | AdviceKind::FreePinned { .. } | AdviceKind::Prefetch { .. } => {}
            AdviceKind::PinHostMemory => f.write_str("; with the host's side pinned")?,
            AdviceKind::UseMethod(method) => write!(f, "; by {method}")?,
            AdviceKind::UseLists { lists } => {
                let lists = counted(lists, "list");
                write!(f, ", submitted in a row; as {lists}, if none needs another,")?;
            }
            AdviceKind::UseIdleLink { idle_ns } => {
                write!(f, ", and their copy engine was idle for {} while they were queued", time(idle_ns))?;
                f.write_str("; on queues of their own, if they need none of the work before them,")?;
            }
            AdviceKind::Calibrate { predicted_ns } => {
                write!(f, ", and the built-in table predicted {}: calibrate", time(predicted_ns))?;
            }
        }
        match (self.saving_ns, self.saving_per_second()) {
            (Some(saving), Some(share)) => {
                write!(f, " they would take {} less", time(saving))?;
                write!(f, ", {} of each second in that direction", time((share * 1e9) as u64))?;
            }
            _ => f.write_str("; what that saves is not known")?,
        }
        if let Some(basis) = basis {
            write!(f, ", {basis}")?;
        }
        f.write_str(simulated)
    }
}

impl Advice {
    /// Writes advice on memory.
    fn of_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mib, unused) = (self.bytes >> 20, time(self.whole_ns));
        match self.kind {
            AdviceKind::Prefetch { device, groups } => {
                write!(f, "accesses of {device} to ")?;
                match &self.buffer {
                    Some(name) => write!(f, "{name:?}")?,
                    None => f.write_str("unified memory")?,
                }
                let groups = counted(groups, "group");
                write!(f, " waited {} for {groups} of page faults, of {mib} MiB; ", time(self.took_ns))?;
                match self.saving_ns {
                    Some(saving) => write!(f, "prefetched before, they would take {} less", time(saving)),
                    None => f.write_str("prefetch it before; what that saves is not known"),
                }
            }
            AdviceKind::FreePinned { buffers } => {
                let buffers = counted(buffers, "buffer");
                write!(
                    f,
                    "{mib} MiB of pinned memory were held in {buffers}, and no operation or view used them for "
                )?;
                write!(f, "{unused}; free them, or use pageable memory")
            }
            _ => {
                write!(f, "{mib} MiB of pinned memory were kept for reuse and in no use for {unused}")?;
                f.write_str("; draining the runtime or a limit frees them")
            }
        }
    }

    /// Returns whether another one says the same of other transfers.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let is_same = |a, b| match (a, b) {
            (Some(AdviceBasis::Transfers(_)), Some(AdviceBasis::Transfers(_))) => true,
            (a, b) => a == b,
        };
        (self.kind, self.path, self.method) == (other.kind, other.path, other.method)
            && is_same(self.basis, other.basis)
    }

    /// Adds these.
    pub(crate) fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.transfers, other.transfers),
            (&mut self.bytes, other.bytes),
            (&mut self.took_ns, other.took_ns),
        ];
        sums.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.share += other.share;
        self.saving_ns = self.saving_ns.zip(other.saving_ns).map(|(sum, more)| sum.saturating_add(more));
        if let (Some(AdviceBasis::Transfers(sum)), Some(AdviceBasis::Transfers(more))) =
            (&mut self.basis, other.basis)
        {
            *sum = sum.saturating_add(more);
        }
    }
}
