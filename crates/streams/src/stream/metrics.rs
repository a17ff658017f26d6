//! Metrics of a stream: counts of its operations, always, and the times of some, if wanted.
//!
//! The count of all operations is that of the stream's points, which copies issue anyway. Only other operations, which take the
//! driver microseconds, have counters.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::{completion::pending_events::Measured, submit::driver_calls::DriverCalls};

/// Which operations of a stream are timed by events. All are counted in any case, which takes nothing of a copy.
///
/// Times are off by default, since they cost events: of 64 copies of 4 KiB and a wait on the software driver, each copy takes
/// 0.42 µs without times, 0.45 (7 % more) with one in 32 and 1.3 with all. The benchmark's rows `streams/metrics` compare on a
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MetricsSampling {
    /// Times nothing. The default.
    Off,
    /// Times one operation in this many. A timed operation records two events; rows `streams/metrics/…` of the benchmark
    /// measure what that costs.
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

/// A stream's metrics: counts since its creation. Times are `None` if nothing was timed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamMetrics {
    /// Current sampling of times.
    pub sampling: MetricsSampling,
    /// Number of operations: copies, fills, prefetches, launches of kernels and graphs. A batch or a graph counts once.
    pub operations_count: u64,
    /// Number of copies of any kind, and prefetches.
    pub memory_transfers: u64,
    /// Number of kernel launches, including copies in place and the foreign launches reported by `record_kernel_launch`.
    /// Nodes of graphs are not counted.
    pub kernel_launches: u64,
    /// Number of timed operations known to be complete.
    pub timed_operations: u64,
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
    /// Maximum of the bytes reported by `update_peak_memory`, if any.
    pub peak_memory: Option<u64>,
    /// Number of callbacks that have run.
    pub callbacks_run: u64,
    /// Number of callbacks that panicked; see `last_callback_panic`.
    pub callbacks_panicked: u64,
}

/// The counters of one stream. Transfers have none: they are the rest of its points.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Counters {
    /// 0 times nothing; else one operation in this many is timed.
    one_in: AtomicU32,
    turn: AtomicU32,
    in_place_copies: AtomicU64,
    kernels: AtomicU64,
    fills_and_graphs: AtomicU64,
    /// Points without an operation.
    fences: AtomicU64,
    /// Launches by the raw handle, which have no points.
    foreign_launches: AtomicU64,
    peak: AtomicU64,
}

impl Counters {
    pub(crate) fn enable(&self, sampling: MetricsSampling) {
        self.one_in.store(sampling.as_number(), Ordering::Relaxed);
    }

    /// Returns whether the next operation is timed.
    #[inline]
    pub(crate) fn is_next_timed(&self) -> bool {
        match self.one_in.load(Ordering::Relaxed) {
            0 => false,
            one_in => self.is_turn(one_in),
        }
    }

    #[cold]
    fn is_turn(&self, one_in: u32) -> bool {
        self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in)
    }

    /// Counts an operation that has a point.
    #[inline]
    pub(crate) fn count(&self, calls: &DriverCalls<'_>) {
        let counter = match calls {
            DriverCalls::CopyInPlace { .. }
            | DriverCalls::CopyBatchInPlace(..)
            | DriverCalls::CopyBlocks(..)
            | DriverCalls::BatchHalf(..)
            | DriverCalls::Cast(..) => &self.in_place_copies,
            DriverCalls::Kernel(..) | DriverCalls::Occupy(..) => &self.kernels,
            DriverCalls::Fill(_) | DriverCalls::Launch(..) => &self.fills_and_graphs,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_foreign_launch(&self) {
        self.foreign_launches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn raise_peak(&self, bytes: u64) {
        self.peak.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns the metrics of a stream that has issued this many points.
    pub(crate) fn read(&self, issued: u64, measured: Measured) -> StreamMetrics {
        let [in_place, kernels, others, fences, foreign] = [
            &self.in_place_copies,
            &self.kernels,
            &self.fills_and_graphs,
            &self.fences,
            &self.foreign_launches,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        let operations = issued.saturating_sub(fences);
        let timed = (measured.operations > 0).then_some(measured);
        StreamMetrics {
            sampling: NonZeroU32::new(self.one_in.load(Ordering::Relaxed))
                .map_or(MetricsSampling::Off, MetricsSampling::OneIn),
            operations_count: operations + foreign,
            memory_transfers: operations.saturating_sub(kernels + others),
            kernel_launches: kernels + in_place + foreign,
            timed_operations: measured.operations,
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
