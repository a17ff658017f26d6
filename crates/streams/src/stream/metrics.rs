//! Metrics of a stream, collected only while enabled.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::{completion::pending_events::Measured, submit::driver_calls::DriverCalls};

/// Which operations of a stream are timed by events. While metrics are on, all are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MetricsSampling {
    /// Counts and times nothing. The default.
    Off,
    /// Times one operation in this many. A timed operation records two events, which costs about as much as enqueueing a
    /// 4 KiB copy.
    OneIn(NonZeroU32),
}

impl MetricsSampling {
    /// Times every operation.
    pub const ALL: Self = Self::OneIn(NonZeroU32::MIN);
    /// Times one operation in 32.
    pub const USUAL: Self = Self::OneIn(NonZeroU32::MIN.saturating_add(31));

    fn as_number(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::OneIn(count) => count.get(),
        }
    }
}

/// `true` times one operation in 32, `false` is off.
impl From<bool> for MetricsSampling {
    fn from(on: bool) -> Self {
        if on { Self::USUAL } else { Self::Off }
    }
}

/// A stream's metrics. `None` if nothing was counted or measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamMetrics {
    /// Current sampling.
    pub sampling: MetricsSampling,
    /// Number of operations: copies, fills, prefetches, launches of kernels and graphs. A batch or a graph counts once.
    pub operations_count: Option<u64>,
    /// Number of copies of any kind, and prefetches.
    pub memory_transfers: Option<u64>,
    /// Number of kernel launches, including copies in place and the foreign launches reported by `record_kernel_launch`.
    /// Nodes of graphs are not counted.
    pub kernel_launches: Option<u64>,
    /// Number of timed operations known to be complete.
    pub timed_operations: Option<u64>,
    /// Total device time of the timed operations: not of all, unless all are timed.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "total_time_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub total_time: Option<Duration>,
    /// Average device time of a timed operation, from its start on the stream to its end.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "average_latency_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub average_latency: Option<Duration>,
    /// Maximum of the bytes reported by `update_peak_memory`.
    pub peak_memory: Option<u64>,
    /// Number of callbacks that have run, also while metrics were off.
    pub callbacks_run: u64,
    /// Number of callbacks that panicked; see `last_callback_panic`.
    pub callbacks_panicked: u64,
}

/// The counters of one stream.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Counters {
    /// 0 is off; else one operation in this many is timed.
    one_in: AtomicU32,
    was_on: AtomicU32,
    turn: AtomicU32,
    operations: AtomicU64,
    transfers: AtomicU64,
    launches: AtomicU64,
    peak: AtomicU64,
}

/// How metrics treat one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    No,
    Yes,
    Timed,
}

impl Counters {
    pub(crate) fn enable(&self, sampling: MetricsSampling) {
        let one_in = sampling.as_number();
        if one_in != 0 {
            self.was_on.store(1, Ordering::Relaxed);
        }
        self.one_in.store(one_in, Ordering::Relaxed);
    }

    /// Returns whether operations are neither counted nor timed.
    #[inline]
    pub(crate) fn are_off(&self) -> bool {
        self.one_in.load(Ordering::Relaxed) == 0
    }

    /// Returns whether the next operation is counted and timed.
    #[inline]
    pub(crate) fn next(&self) -> Counted {
        match self.one_in.load(Ordering::Relaxed) {
            0 => Counted::No,
            one_in => self.next_of(one_in),
        }
    }

    #[cold]
    fn next_of(&self, one_in: u32) -> Counted {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(one_in) { Counted::Timed } else { Counted::Yes }
    }

    /// Counts an enqueued operation, unless [`next`](Self::next) returned `No` for it.
    #[cold]
    pub(crate) fn count(&self, calls: &DriverCalls<'_>) {
        let (transfers, launches) = match calls {
            DriverCalls::CopyInPlace { .. } => (1, 1),
            DriverCalls::Kernel(..) => (0, 1),
            DriverCalls::Fill(_) | DriverCalls::Launch(..) => (0, 0),
            _ => (1, 0),
        };
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.transfers.fetch_add(transfers, Ordering::Relaxed);
        self.launches.fetch_add(launches, Ordering::Relaxed);
    }

    pub(crate) fn count_launch(&self) {
        if self.one_in.load(Ordering::Relaxed) != 0 {
            self.operations.fetch_add(1, Ordering::Relaxed);
            self.launches.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn raise_peak(&self, bytes: u64) {
        if self.one_in.load(Ordering::Relaxed) != 0 {
            self.peak.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self, measured: Measured) -> StreamMetrics {
        let was_on = self.was_on.load(Ordering::Relaxed) != 0;
        let counted = |counter: &AtomicU64| was_on.then(|| counter.load(Ordering::Relaxed));
        let timed = (measured.operations > 0).then_some(measured);
        StreamMetrics {
            sampling: NonZeroU32::new(self.one_in.load(Ordering::Relaxed))
                .map_or(MetricsSampling::Off, MetricsSampling::OneIn),
            operations_count: counted(&self.operations),
            memory_transfers: counted(&self.transfers),
            kernel_launches: counted(&self.launches),
            timed_operations: was_on.then_some(measured.operations),
            total_time: timed.map(|measured| measured.time),
            average_latency: timed.map(|measured| {
                let nanoseconds = measured.time.as_nanos() / u128::from(measured.operations);
                Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
            }),
            peak_memory: Some(self.peak.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0),
            callbacks_run: 0,
            callbacks_panicked: 0,
        }
    }
}
