//! Reports of a profiler, as text and for `serde`.

use std::fmt;

use transload_core::{
    DeviceId, Engine, OperationInfo, OperationSampling, SizeClass, TransferMethod, TransferPath,
};

use crate::{
    Advice, MigrationReport, UnavailableDevice,
    stream_report::{StreamReport, TimesReport, write_timed},
};

/// A time in which nothing timed ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct GapReport {
    /// When it began, since the profiler was made; by the device's clock if that is virtual, or if the device is gone.
    pub begin_ns: i64,
    /// How long it was.
    pub length_ns: u64,
}

/// What a device did in one direction.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DirectionReport {
    /// The device.
    pub device: DeviceId,
    /// The direction.
    pub direction: Direction,
    /// Bytes of the timed operations.
    pub timed_bytes: u64,
    /// From the first timed operation's begin to the last one's end.
    pub whole_ns: u64,
    /// Time in which at least one of them ran; a lower bound if [`is_cut`](Self::is_cut).
    pub busy_ns: u64,
    /// Sum of their times. What it exceeds `busy_ns` by, they ran at the same time, or waited for the same engine.
    pub total_ns: u64,
    /// Whether it is known of every operation of the device's streams since the first when it ran: none was lost, or not timed, or enqueued while the
    /// profiler was disabled. Otherwise a gap may hold one that is not known.
    pub all_timed: bool,
    /// Whether an operation ended later than over a thousand that began after it. The gaps are not known then.
    pub is_cut: bool,
    /// The longest gaps between them; none if not [`all_timed`](Self::all_timed), or if the device has several such reports, of two backends: their clocks
    /// are not compared, and one may have worked in the other's gaps.
    pub gaps: Vec<GapReport>,
}

/// What engines of a device did in one direction, by the driver's records of this process's work: timed or not, of the library or of others.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct EngineReport {
    /// The device.
    pub device: DeviceId,
    /// The direction.
    pub direction: Direction,
    /// The engines; `None` if the driver does not say.
    pub engine: Option<Engine>,
    /// Records.
    pub spans: u64,
    /// Bytes of copies and fills.
    pub bytes: u64,
    /// From the first begin to the last end; 0 if the host's time of day was set meanwhile.
    pub whole_ns: u64,
    /// Time in which at least one of them ran; a lower bound if [`is_cut`](Self::is_cut).
    pub busy_ns: u64,
    /// Sum of their times.
    pub total_ns: u64,
    /// Whether a record came much later than its work ended, timed work of the device was in flight, or its records were, or the host's time of day was
    /// set. The gaps are not known then.
    pub is_cut: bool,
    /// The longest times between them, in which the engines did nothing in this direction for this process. None if records were lost, if nothing was
    /// recorded for a while in between, if timed work was in flight, or if the host's time of day was set. Other work has a record once it is complete: until then
    /// a gap may hold it.
    pub gaps: Vec<GapReport>,
}

/// Where the bytes of an operation go, seen from its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Direction {
    /// From another place to the device.
    ToDevice,
    /// From the device to another place.
    FromDevice,
    /// Within the device, or within the host.
    Within,
    /// No copy: kernels, fills, recordings, prefetches.
    Compute,
}

impl Direction {
    pub(crate) fn of(device: DeviceId, info: &OperationInfo) -> Self {
        match info.path {
            Some((src, dst)) if info.kind.is_transfer() => Self::of_path(device, TransferPath::new(src, dst)),
            _ => Self::Compute,
        }
    }

    pub(crate) fn of_path(device: DeviceId, TransferPath { src, dst }: TransferPath) -> Self {
        match (src.device == device, dst.device == device) {
            (true, false) => Self::FromDevice,
            (false, true) => Self::ToDevice,
            _ => Self::Within,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToDevice => "to the device",
            Self::FromDevice => "from the device",
            Self::Within => "within",
            Self::Compute => "compute",
        })
    }
}

/// Transfers of one path, method and class of size.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PathReport {
    /// Source and destination.
    pub path: TransferPath,
    /// The method.
    pub method: TransferMethod,
    /// The class of their sizes.
    pub size_class: SizeClass,
    /// Completed transfers that were taken as samples.
    pub sampled: u64,
    /// Their bytes.
    pub sampled_bytes: u64,
    /// Transfers that failed, all of them.
    pub failed: u64,
    /// Transfers that were taken as samples and whose handles were dropped before their ends were observed.
    pub abandoned: u64,
    /// Host time of the submission.
    pub submitting: TimesReport,
    /// From the submission until the submitter observed the end. Percentiles are those of the samples, of which large transfers are more than their share, as in
    /// [`KindReport::running`](crate::KindReport::running).
    pub elapsed: TimesReport,
    /// Times by the device's clock of those that the manager measured.
    pub moving: TimesReport,
    /// Transfers in one piece of which every operation was timed, by the device and backend of the first one.
    pub timed: u64,
    /// Those by another device, or by another backend of it, whose times are by another clock: left out of what follows, and of advice.
    #[cfg_attr(feature = "serde", serde(default))]
    pub left_out: u64,
    /// Of these, from the begin of the submission to the moment that a stream reached the first operation. Without those by a clock that is not the host's.
    pub waiting: TimesReport,
    /// Of these, from then to the end of the last operation: includes waiting for a copy engine that others use.
    pub running: TimesReport,
    /// Their bytes.
    pub timed_bytes: u64,
    /// Time in which at least one of them ran, from its first operation's begin to its last one's end; a lower bound if [`is_cut`](Self::is_cut).
    pub busy_ns: u64,
    /// Whether a transfer ended later than over a thousand that began after it. The rate is not known then.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_cut: bool,
}

impl PathReport {
    /// Returns the rate of the timed transfers while at least one of them ran, in bytes per second; `None` without any, or if it is not known.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.busy_ns > 0 && !self.is_cut).then(|| self.timed_bytes as f64 / (self.busy_ns as f64 / 1e9))
    }
}

/// A device's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ClockReport {
    /// The device.
    pub device: DeviceId,
    /// Largest error of its instants compared with the host's, by the last 16 readings; the largest number if it was set meanwhile.
    pub error_ns: u64,
    /// Whether it counts the time of the host's clock, though at a slightly different rate. Virtual time of a software driver does
    /// not: lengths are right then, and places relative to the host mean nothing.
    pub follows_host: bool,
}

impl fmt::Display for ClockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, error_ns, follows_host } = self;
        match follows_host {
            true => write!(f, "clock of {device}: within {} of the host's", time(*error_ns)),
            false if *error_ns == u64::MAX => write!(f, "clock of {device}: it was set"),
            false => write!(f, "clock of {device}: virtual time, not the host's"),
        }
    }
}

/// What a profiler knows.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ProfilerReport {
    /// Which operations were timed.
    pub sampling: OperationSampling,
    /// The share of bytes whose operations were timed, of those that have bytes; `None` without any.
    pub timed_share: Option<f64>,
    /// Streams, by their numbers.
    pub streams: Vec<StreamReport>,
    /// Devices and directions. A device that two backends opened has two of each, since each backend has a clock of its own.
    pub directions: Vec<DirectionReport>,
    /// What their engines did, if that was recorded.
    pub engines: Vec<EngineReport>,
    /// Migrations of unified memory, if these were recorded with the engines.
    pub migrations: Vec<MigrationReport>,
    /// Why they were not; `None` if they were, or engines were never recorded.
    pub without_migrations: Option<String>,
    /// Sampled transfers of managers that have the profiler as their observer.
    pub paths: Vec<PathReport>,
    /// Clocks.
    pub clocks: Vec<ClockReport>,
    /// Devices of the attached backends that are not profiled.
    #[cfg_attr(feature = "serde", serde(default))]
    pub unavailable: Vec<UnavailableDevice>,
    /// Operations and transfers that are missing here because there was no room for them.
    pub lost: u64,
    /// Largest error of the places of records of engines on the host's clock, by the last 16 readings, without that of the driver's own conversion, which is not known; `None` while none
    /// are recorded, and the largest number if that clock was set meanwhile. Their lengths do not have it.
    pub engine_clock_error_ns: Option<u64>,
    /// Records of engines that had no room, or were not complete; and timed copies, fills and kernels without a record 10 s after their end, or when recording or a trace ended.
    /// While two backends record, what the one lost that lost more: losses of the driver's library are told to both.
    pub engine_records_lost: u64,
    /// Timed operations that are not complete yet.
    pub outstanding: u64,
    /// What would take less time, what saves most first.
    pub advice: Vec<Advice>,
}

impl ProfilerReport {
    /// Returns whether any stream is one of a software driver.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.streams.iter().any(|stream| stream.simulated)
    }
}

pub(crate) fn percent(share: Option<f64>) -> impl fmt::Display {
    fmt::from_fn(move |f| match share {
        Some(share) => write!(f, "{:.1} %", 100.0 * share),
        None => f.write_str("none"),
    })
}

/// Formats nanoseconds with a unit.
pub(crate) fn time(nanoseconds: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| match nanoseconds {
        0..1_000 => write!(f, "{nanoseconds} ns"),
        1_000..1_000_000 => write!(f, "{:.1} µs", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => write!(f, "{:.2} ms", nanoseconds as f64 / 1e6),
        _ => write!(f, "{:.3} s", nanoseconds as f64 / 1e9),
    })
}

impl fmt::Display for DirectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, direction, whole_ns, busy_ns, total_ns, all_timed, is_cut, gaps, .. } = self;
        let share = (*whole_ns > 0).then(|| *busy_ns as f64 / *whole_ns as f64);
        write!(
            f,
            "{device}, {direction}: busy {}{} of {} ({})",
            if *is_cut { "at least " } else { "" },
            time(*busy_ns),
            time(*whole_ns),
            percent(share)
        )?;
        if total_ns > busy_ns && !is_cut {
            write!(f, ", {} at the same time", time(total_ns - busy_ns))?;
        }
        match gaps.first() {
            _ if *is_cut => f.write_str(", gaps unknown since an operation ended long after later ones"),
            _ if !all_timed => f.write_str(", gaps unknown since not all was timed"),
            Some(gap) => write!(f, ", longest gap {}", time(gap.length_ns)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for EngineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, direction, engine, spans, whole_ns, busy_ns, is_cut, gaps, .. } = self;
        let engine = engine_name(*engine);
        let share = (*whole_ns > 0).then(|| *busy_ns as f64 / *whole_ns as f64);
        let least = if *is_cut { "at least " } else { "" };
        write!(f, "{device}, {direction}, {engine}: {spans} records, busy {least}{}", time(*busy_ns))?;
        if share.is_some() {
            write!(f, " of {} ({})", time(*whole_ns), percent(share))?;
        }
        match gaps.first() {
            Some(gap) => write!(f, ", longest gap {}", time(gap.length_ns)),
            None => Ok(()),
        }
    }
}

pub(crate) fn engine_name(engine: Option<Engine>) -> &'static str {
    match engine {
        Some(Engine::Copy) => "copy engine",
        Some(Engine::Compute) => "multiprocessors",
        _ => "unknown engine",
    }
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, method, size_class, sampled, failed, abandoned, elapsed, moving, timed, .. } = self;
        write!(f, "{path} by {method}, {size_class}: {sampled} sampled")?;
        for (number, what) in [(failed, "failed"), (abandoned, "abandoned")] {
            if *number > 0 {
                write!(f, ", {number} {what}")?;
            }
        }
        if elapsed.count > 0 {
            write!(f, "\n  elapsed {elapsed}")?;
        }
        if moving.count > 0 {
            write!(f, "\n  moving {moving}")?;
        }
        if *timed > 0 {
            match self.bytes_per_second() {
                Some(rate) => write!(f, "\n  {timed} timed: {:.2} GB/s", rate / 1e9)?,
                None => write!(f, "\n  {timed} timed, busy at least {}", time(self.busy_ns))?,
            }
            write!(f, "\n    ran {}", self.running)?;
            if self.waiting.count > 0 {
                write!(f, "\n    waited {}", self.waiting)?;
            }
            if self.left_out > 0 {
                write!(f, "\n    {} timed by another device or backend are left out", self.left_out)?;
            }
        }
        Ok(())
    }
}

/// Sections for streams, directions, engines, paths, clocks and advice, and first what was timed.
impl fmt::Display for ProfilerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { streams, directions, engines, paths, clocks, lost, outstanding, advice, .. } = self;
        write_timed(f, self.sampling, self.timed_share)?;
        writeln!(f, "; {outstanding} outstanding, {lost} lost")?;
        for stream in streams {
            stream.write_kinds(f)?;
            writeln!(f)?;
        }
        directions.iter().try_for_each(|direction| writeln!(f, "{direction}"))?;
        engines.iter().try_for_each(|engine| writeln!(f, "{engine}"))?;
        self.migrations.iter().try_for_each(|migrations| writeln!(f, "{migrations}"))?;
        if let Some(reason) = &self.without_migrations {
            writeln!(f, "no migrations were recorded: {reason}")?;
        }
        if let Some(error) = self.engine_clock_error_ns {
            match error {
                u64::MAX => f.write_str(
                    "clock of the records of engines: it was set, so their places mean nothing\n",
                )?,
                _ => writeln!(f, "clock of the records of engines: within {} of the host's", time(error))?,
            }
        }
        if self.engine_records_lost > 0 {
            writeln!(
                f,
                "{} records of engines lost: their busy times are lower bounds",
                self.engine_records_lost
            )?;
        }
        paths.iter().try_for_each(|path| writeln!(f, "{path}"))?;
        clocks.iter().try_for_each(|clock| writeln!(f, "{clock}"))?;
        self.unavailable.iter().try_for_each(|device| writeln!(f, "{device}"))?;
        advice.iter().try_for_each(|advice| writeln!(f, "advice: {advice}"))
    }
}
