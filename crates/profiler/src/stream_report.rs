//! Reports of streams: the times of each kind of operation.

use std::fmt;

use transload_core::{DeviceId, OperationKind, OperationSampling, StreamPriority};

use crate::report::{ClockReport, percent, time};

/// Percentiles of times, to two significant digits, in nanoseconds. They are those of what was timed: the first operation of each stream always is, which may be
/// slower than later ones, so with many short-lived streams they lean to first ones, unless the [sampling](OperationSampling) times all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Percentiles {
    /// A tenth is at most this.
    pub p10_ns: u64,
    /// Half is at most this.
    pub p50_ns: u64,
    /// Nine tenths are at most this.
    pub p90_ns: u64,
    /// All but a hundredth is at most this.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Times that were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TimesReport {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// Their distribution; `None` without any, or if the [memory](crate::ProfilerOptions) for distributions was full: that of a part would be a wrong one.
    pub percentiles: Option<Percentiles>,
}

/// Operations of one kind on one stream.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct KindReport {
    /// The kind.
    pub kind: OperationKind,
    /// All operations, timed or not.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the timed ones.
    pub timed_bytes: u64,
    /// From the enqueueing to the moment that the stream reached the operation, after all that it waited for. Without times that
    /// the caller gave, and without those of a clock that is not the host's.
    pub waiting: TimesReport,
    /// From then to its end: includes waiting for a copy engine that other streams use. Of [waits](OperationKind::Wait), how long the stream
    /// waited for other streams. Percentiles are those of the timed operations, of which large ones are more than their share if the [sampling](StreamReport::sampling)
    /// times all of them, and some of the small ones.
    pub running: TimesReport,
    /// Of the timed ones with [records of engines](crate::StreamProfiler::record_engines), from the first begin to the last end of the engines' work,
    /// which excludes waiting for an engine.
    pub exact: TimesReport,
    /// How many of these ran, by `running`'s clock, as long as that, within 2 µs and 1 %.
    pub agreeing: u64,
}

impl KindReport {
    /// Returns the rate of the timed operations while they ran, in bytes per second; `None` without bytes or times.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        let seconds = self.running.total_ns as f64 / 1e9;
        (self.timed_bytes > 0 && seconds > 0.0).then(|| self.timed_bytes as f64 / seconds)
    }
}

/// The report of one stream.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamReport {
    /// Which operations were timed.
    pub sampling: OperationSampling,
    /// The share of bytes whose operations were timed, of those that have bytes; `None` without any.
    pub timed_share: Option<f64>,
    /// Operations and transfers, of any stream, that are missing in reports because there was no room for them.
    pub lost: u64,
    /// Clocks of its device, with their errors.
    pub clocks: Vec<ClockReport>,
    /// Number of the stream's timeline in this process; `others` for all of a device and priority that are gone or beyond 256, once there are 256.
    pub stream: String,
    /// Its device.
    pub device: DeviceId,
    /// Its priority.
    pub priority: StreamPriority,
    /// Whether the device is simulated by a software driver.
    pub simulated: bool,
    /// Each kind of operation that it had.
    pub kinds: Vec<KindReport>,
    /// Timed operations whose times were never known, as after the loss of a device.
    pub unresolved: u64,
}

impl StreamReport {
    /// Returns the number of operations, without waits.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let operations = self.kinds.iter().filter(|kind| kind.kind != OperationKind::Wait);
        operations.fold(0, |sum, kind| sum.saturating_add(kind.operations))
    }

    /// Writes what is its own, without what it has in common with those of other streams.
    pub(crate) fn write_kinds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, device, priority, simulated, kinds, unresolved, .. } = self;
        let simulated = if *simulated { " (simulated)" } else { "" };
        write!(f, "stream {stream} of {device}{simulated}, {priority:?}: {} operations", self.operations())?;
        for kind in kinds {
            let KindReport { kind: name, operations, bytes, running, waiting, .. } = kind;
            write!(f, "\n  {name}: {operations}, {bytes} bytes; {} timed", running.count)?;
            if running.count > 0 {
                write!(f, "\n    ran {running}")?;
            }
            if let Some(rate) = kind.bytes_per_second() {
                write!(f, "; {:.2} GB/s", rate / 1e9)?;
            }
            if waiting.count > 0 {
                write!(f, "\n    waited {waiting}")?;
            }
            if kind.exact.count > 0 {
                let share = percent(Some(kind.agreeing as f64 / kind.exact.count as f64));
                write!(f, "\n    engines worked {}; {share} of {} agree", kind.exact, kind.exact.count)?;
            }
        }
        if *unresolved > 0 {
            write!(f, "\n  {unresolved} timed operations never ended by the device's clock")?;
        }
        Ok(())
    }
}

/// Returns the share of bytes whose operations were timed, of those that have bytes.
pub(crate) fn timed_share<'a>(kinds: impl Iterator<Item = &'a KindReport>) -> Option<f64> {
    let (part, whole) = kinds.fold((0_u64, 0_u64), |(part, whole), kind| {
        (part.saturating_add(kind.timed_bytes), whole.saturating_add(kind.bytes))
    });
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl fmt::Display for TimesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percentiles {
            None if self.count == 0 => f.write_str("not timed"),
            None => {
                let mean = time(self.total_ns / self.count);
                write!(f, "mean {mean}, no percentiles: the memory for distributions was full")
            }
            Some(Percentiles { p50_ns, p90_ns, max_ns, .. }) => {
                write!(f, "median {}, p90 {}, longest {}", time(p50_ns), time(p90_ns), time(max_ns))
            }
        }
    }
}

/// First what was timed, at the end the clock.
impl fmt::Display for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_timed(f, self.sampling, self.timed_share)?;
        writeln!(f, "; {} lost of all streams", self.lost)?;
        self.write_kinds(f)?;
        self.clocks.iter().try_for_each(|clock| write!(f, "\n{clock}"))
    }
}

/// Writes what was timed.
pub(crate) fn write_timed(
    f: &mut fmt::Formatter<'_>,
    of: OperationSampling,
    share: Option<f64>,
) -> fmt::Result {
    let OperationSampling { all_from_bytes, one_in } = of;
    let share = percent(share);
    let is_even = all_from_bytes == 0 || one_in == 1;
    let first = if is_even { "" } else { " and the first of each stream" };
    write!(
        f,
        "timed: all from {all_from_bytes} bytes on, one in {one_in} below{first}; {share} of the bytes"
    )?;
    let leaning = "; medians lean to large operations, of which more are timed, and, of many short-lived streams, to first ones";
    if is_even { Ok(()) } else { f.write_str(leaning) }
}
