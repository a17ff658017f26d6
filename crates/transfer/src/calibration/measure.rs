//! Measures the paths of all pairs of devices, one after another.

use std::{collections::BTreeMap, time::Duration};

use transload_core::{
    DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Place, RawBuffer, Result, TransferMethod,
    TransferPath,
};

use super::{
    Calibration, CalibrationOptions, CalibrationProgress, MeasuredTime, MethodCurve, PathCalibration,
    Unfinished, UnfinishedReason, sample::Sample,
};
use crate::{CrossBackendTransferManager, TransferOptions};

/// The smallest measured size, in bytes.
const SMALLEST: u64 = 256;
/// Ratio of two sizes in a row.
const STEP: u64 = 4;
/// Ratio of two sizes in a row around a crossing point.
const FINEST: f64 = 1.2;
/// Ratio of times up to which two methods may cross between two sizes at which the same one is faster.
const CLOSE: f64 = 1.15;
/// The part of a pair's time that one method and size may use.
const SHARE: u32 = 300;
/// Copies of less than this are warmed up twice.
const QUICK: Duration = Duration::from_millis(1);
/// Copies of less than this are timed several at once.
const CLOCKED: Duration = Duration::from_micros(20);
/// The part of the free memory that one buffer may use.
const OF_FREE: u64 = 8;
/// The same of a device that does not know its memory, in bytes.
const OF_UNKNOWN: u64 = 256 << 20;

/// Why a measurement ended early.
enum Stop {
    Budget,
    Cancelled,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Measured times by size.
type Times = BTreeMap<u64, Vec<(TransferMethod, MeasuredTime)>>;

struct Run<'a> {
    manager: &'a CrossBackendTransferManager,
    options: &'a CalibrationOptions,
    calibration: Calibration,
    is_cancelled: bool,
    done: usize,
    total: usize,
    /// Until when the present pair of devices is measured, by the options' clock.
    deadline: Duration,
}

/// # Errors
/// [`ErrorKind::InvalidArgument`] if the options leave nothing to measure.
pub(super) fn all(
    manager: &CrossBackendTransferManager,
    options: &CalibrationOptions,
) -> Result<Calibration> {
    if ladder(options.largest).nth(1).is_none() {
        let text =
            format!("copies of at most {} bytes; valid are at least {}", options.largest, SMALLEST * STEP);
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    if options.budget.is_zero() {
        return Err(Error::new(ErrorKind::InvalidArgument, "no time to measure; valid is more than 0"));
    }
    let devices = manager.devices();
    let pairs = devices.iter().enumerate().flat_map(|(at, a)| devices.iter().skip(at).map(move |b| (a, b)));
    let pairs: Vec<_> = pairs.map(|(a, b)| ends(a, b)).filter(|ends| !ends.is_empty()).collect();
    let paths: usize = pairs.iter().flatten().map(|(a, b)| paths(*a, *b).count()).sum();
    let begun = (options.clock)();
    let mut run = Run {
        manager,
        options,
        calibration: Calibration::default(),
        is_cancelled: false,
        done: 0,
        total: paths * ladder(options.largest).count(),
        deadline: begun,
    };
    pairs.iter().for_each(|pair| run.pair(pair));
    run.calibration.elapsed = (options.clock)().saturating_sub(begun);
    Ok(run.calibration)
}

fn ladder(largest: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(SMALLEST), |size| size.checked_mul(STEP))
        .take_while(move |size| *size <= largest)
}

/// Returns the places between two devices that are measured, in both directions. Unified memory is not: see `calibrate`.
fn ends(a: &DeviceInfo, b: &DeviceInfo) -> Vec<(Place, Place)> {
    let (host, device) = if b.id.is_cpu() { (b, a) } else { (a, b) };
    let near = |info: &DeviceInfo| {
        let kind = if info.id.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device };
        info.kinds.contains(&kind).then(|| Place::new(info.id, kind))
    };
    let Some(there) = near(device) else { return Vec::new() };
    if device.id.is_cpu() || !host.id.is_cpu() {
        return near(host).map(|here| (here, there)).into_iter().collect();
    }
    let kinds = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];
    let offered = kinds.into_iter().filter(|kind| host.kinds.contains(kind) || device.kinds.contains(kind));
    offered.map(|kind| (Place::new(DeviceId::Cpu, kind), there)).collect()
}

fn paths(a: Place, b: Place) -> impl Iterator<Item = TransferPath> {
    let back = (a != b).then(|| TransferPath::new(b, a));
    [TransferPath::new(a, b)].into_iter().chain(back)
}

impl Run<'_> {
    fn now(&self) -> Duration {
        (self.options.clock)()
    }

    /// Measures a pair of devices. Of its memory only two buffers exist at a time.
    fn pair(&mut self, all: &[(Place, Place)]) {
        let begun = self.now();
        let budget = self.options.budget;
        self.deadline = begun.saturating_add(budget);
        let count = all.iter().flat_map(|(a, b)| paths(*a, *b)).count();
        let share = budget / u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let mut finest = begun;
        for (a, b) in all {
            let both = self.buffers(*a, *b);
            for (path, turned) in paths(*a, *b).zip([false, true]) {
                finest = finest.saturating_add(share);
                let measured = match &both {
                    Err(error) => Err(Stop::Failed(error.clone())),
                    Ok((a, b)) if turned => self.path(path, b, a, finest),
                    Ok((a, b)) => self.path(path, a, b, finest),
                };
                match measured {
                    Ok(methods) => self.calibration.paths.push(PathCalibration { path, methods }),
                    Err(stop) => self.unfinished(path, stop),
                }
            }
        }
    }

    fn unfinished(&mut self, path: TransferPath, stop: Stop) {
        let reason = match stop {
            Stop::Budget => UnfinishedReason::Budget,
            Stop::Cancelled => UnfinishedReason::Cancelled,
            Stop::Failed(error) => UnfinishedReason::Failed(error.to_string()),
        };
        self.calibration.unfinished.push(Unfinished { path, reason });
    }

    /// Allocates a buffer in each place, of the largest size for which there is memory, and writes to the host's.
    fn buffers(&self, a: Place, b: Place) -> Result<(RawBuffer, RawBuffer)> {
        let mut largest = self.options.largest;
        for device in [a.device, b.device] {
            let backend = self.manager.backend(device)?;
            let total = || backend.devices().iter().find(|info| info.id == device)?.total_memory;
            let memory = backend.memory_info(device).map(|memory| memory.free).ok().or_else(total);
            largest = largest.min(memory.map_or(OF_UNKNOWN, |bytes| bytes / OF_FREE));
        }
        // Pinned memory is made by the device that uses it.
        let allocate = |place: Place, other: Place, bytes| -> Result<RawBuffer> {
            let is_pinned = matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped);
            let device = if is_pinned { other.device } else { place.device };
            let buffer = self.manager.allocate_for(device, place.kind, bytes)?;
            if place.device.is_cpu() {
                // Untouched pages would all be the same one.
                buffer.write()?.fill(0x5A);
            }
            Ok(buffer)
        };
        for bytes in ladder(largest).skip(1).collect::<Vec<_>>().into_iter().rev() {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            match allocate(a, b, bytes).and_then(|first| Ok((first, allocate(b, a, bytes)?))) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                outcome => return outcome,
            }
        }
        let text = format!("too little free memory to measure {a} and {b}: {largest} bytes may be used");
        Err(Error::new(ErrorKind::OutOfMemory, text))
    }

    /// Measures all sizes of a path, and those around crossing points until `finest`.
    fn path(
        &mut self,
        path: TransferPath,
        src: &RawBuffer,
        dst: &RawBuffer,
        finest: Duration,
    ) -> Result<Vec<MethodCurve>, Stop> {
        // What a method lacks is found, and told, by its first copy.
        let _ = self.manager.prepare(path.src, path.dst, &TransferOptions::new());
        let plan = self.manager.plan(path.src, path.dst, SMALLEST, &TransferOptions::new())?;
        self.calibration.simulated |= plan.simulated;
        let mut methods = vec![plan.method];
        methods.extend(plan.alternatives.iter().map(|other| other.method));
        let mut times = Times::new();
        for bytes in ladder(src.len() as u64) {
            times.insert(bytes, self.size((src, dst), &mut methods, bytes)?);
            self.done += 1;
        }
        self.done += ladder(self.options.largest).count() - times.len();
        while !transload_core::mutant!("transfer/refines-crossings")
            && self.now() < finest.min(self.deadline)
            && let Some(bytes) = next_middle(&times)
        {
            match self.size((src, dst), &mut methods, bytes) {
                Ok(middle) => times.insert(bytes, middle),
                Err(Stop::Failed(error)) => return Err(Stop::Failed(error)),
                // The path is finished, if less fine.
                Err(Stop::Budget | Stop::Cancelled) => break,
            };
        }
        let curve = |method| MethodCurve {
            method,
            times: times.values().flatten().filter(|(of, _)| *of == method).map(|(_, time)| *time).collect(),
        };
        Ok(methods.into_iter().map(curve).collect())
    }

    /// Measures copies of one size by each method in turn, so that changes of the machine affect all. Removes methods that cannot be
    /// used.
    fn size(
        &mut self,
        (src, dst): (&RawBuffer, &RawBuffer),
        methods: &mut Vec<TransferMethod>,
        bytes: u64,
    ) -> Result<Vec<(TransferMethod, MeasuredTime)>, Stop> {
        let path = TransferPath::new(src.place(), dst.place());
        let (done, total) = (self.done, self.total);
        let flow = (self.options.progress)(CalibrationProgress { path, bytes, done, total });
        self.is_cancelled |= flow.is_break();
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (src, dst) = (src.slice(..len)?, dst.slice(..len)?);
        let mut samples = Vec::new();
        for &method in &*methods {
            // The first copies warm up the path and the bytes.
            let once = || self.timed(&src, &dst, method, 1);
            match once().and_then(|time| if time < QUICK { once() } else { Ok(time) }) {
                Ok(time) => {
                    let batch = CLOCKED.as_nanos() / time.as_nanos().max(1);
                    let batch = u32::try_from(batch).unwrap_or(u32::MAX).clamp(1, 64);
                    samples.push((method, batch, Sample::default()));
                }
                Err(Stop::Failed(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(stop) => return Err(stop),
            }
        }
        methods.retain(|method| samples.iter().any(|(of, ..)| of == method));
        if methods.is_empty() {
            let text = format!("no method of {path} could be used");
            return Err(Stop::Failed(Error::new(ErrorKind::Unsupported, text)));
        }
        let share = self.options.budget / SHARE;
        while samples.iter().any(|(.., sample)| !sample.is_enough(share)) {
            for (method, batch, sample) in samples.iter_mut().filter(|(.., sample)| !sample.is_enough(share))
            {
                sample.add(self.timed(&src, &dst, *method, *batch)?, *batch);
            }
        }
        Ok(samples.into_iter().map(|(method, _, sample)| (method, sample.result(bytes))).collect())
    }

    /// Returns the time of `batch` copies, one after another.
    fn timed(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
        method: TransferMethod,
        batch: u32,
    ) -> Result<Duration, Stop> {
        if self.is_cancelled {
            return Err(Stop::Cancelled);
        }
        let begun = self.now();
        if begun >= self.deadline {
            return Err(Stop::Budget);
        }
        for _ in 0..batch {
            self.manager.copy(src, dst).method(method).wait()?;
        }
        Ok(self.now().saturating_sub(begun))
    }
}

/// Returns a size between two measured ones where the fastest method changes, or may change unseen.
fn next_middle(times: &Times) -> Option<u64> {
    times.iter().zip(times.iter().skip(1)).find_map(|((low, at_low), (high, at_high))| {
        let best = |times: &[(TransferMethod, MeasuredTime)]| {
            let mut sorted = times.to_vec();
            sorted.sort_by_key(|(_, time)| time.median);
            let [first, second, ..] = sorted.as_slice() else { return None };
            let is_close = second.1.median.as_secs_f64() <= CLOSE * first.1.median.as_secs_f64();
            Some((first.0, is_close))
        };
        let ((from, close_low), (to, close_high)) = (best(at_low)?, best(at_high)?);
        let ratio = *high as f64 / *low as f64;
        let is_coarse = if from == to { (close_low || close_high) && ratio > 2.0 } else { ratio > FINEST };
        let middle = (*low as f64 * *high as f64).sqrt() as u64;
        (is_coarse && (low + 1..*high).contains(&middle)).then_some(middle)
    })
}
