//! Measures the paths of all pairs of devices, one after another.

use std::{thread, time::Duration};

use transload_core::{
    CostBasis, DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Place, RawBuffer, Result, Timing,
    TransferMethod, TransferPath,
};

use super::{
    Calibration, CalibrationOptions, CalibrationProgress, MeasuredTime, MethodCurve, PathCalibration,
    Unfinished, UnfinishedReason,
    list_parts::ListPart,
    load::await_idle,
    measure_lists::{self, has_ways, shapes},
    measure_memory::shortage,
    sample::{Sample, are_enough, contenders},
    sizes::Sizes,
};
use crate::{CrossBackendTransferManager, Plan, TransferOptions};

/// The smallest measured size, in bytes.
const SMALLEST: u64 = 256;
/// Ratio of two sizes in a row.
pub(super) const STEP: u64 = 4;
/// The part of a pair's time that one method and size may use.
const SHARE: u32 = 500;
/// Copies of less than this are warmed up twice.
pub(super) const QUICK: Duration = Duration::from_millis(1);
/// Number and bytes of the copies of pageable memory before the first one that is measured: of CUDA's, the first hundred of 64 KiB take 22 µs
/// instead of 16 (H200).
const WARM_UP: (u32, usize) = (128, 64 << 10);
/// Copies of pageable memory from this size on are timed right after one by the same method: after one that was staged by other threads,
/// a driver's download of 1 MiB took 172 to 196 us instead of 101 to 109 (H200, 2 processors).
const REPEATED_FROM: u64 = 64 << 10;
/// A method that takes this long, and far longer than another, is measured a few times only.
const SLOW: Duration = Duration::from_millis(5);
/// Copies of less than this are timed several at once, since reading the clock takes time too.
const CLOCKED: Duration = Duration::from_micros(2);
/// The kernel by which it is found that a device is idle.
const BRIEF: Duration = Duration::from_micros(1);
/// The part of a pair's time that is left to lists: single copies are measured finely until then.
const FOR_LISTS: f64 = 0.6;
/// Sizes between the usual ones that are measured of each path that has some worth it, whatever the time.
const FEWEST_MIDDLES: usize = 8;

/// Why a measurement ended early.
pub(super) enum Stop {
    Budget,
    Cancelled,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct Run<'a> {
    pub(super) manager: &'a CrossBackendTransferManager,
    pub(super) options: &'a CalibrationOptions,
    pub(super) calibration: Calibration,
    is_cancelled: bool,
    pub(super) done: usize,
    total: usize,
    /// Until when the present pair of devices is measured, by the options' clock.
    pub(super) deadline: Duration,
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
    let lists = |path| shapes(measure_lists::largest(path, options.largest)).count();
    let of_path =
        |path| ladder(options.largest).count() + if has_ways(manager, path) { lists(path) } else { 0 };
    let total = pairs.iter().flatten().flat_map(|(a, b)| paths(*a, *b)).map(of_path).sum();
    let begun = (options.clock)();
    let mut run = Run {
        manager,
        options,
        calibration: Calibration::default(),
        is_cancelled: false,
        done: 0,
        total,
        deadline: begun,
    };
    pairs.iter().for_each(|pair| run.pair(pair));
    run.calibration.elapsed = (options.clock)().saturating_sub(begun);
    Ok(run.calibration)
}

/// Returns whether the method cannot be used on a path: staging also if there is no pinned memory for it.
fn is_unusable(method: TransferMethod, error: &Error) -> bool {
    let is_short = error.kind() == ErrorKind::OutOfMemory && method == TransferMethod::HostStaged;
    error.kind() == ErrorKind::Unsupported || is_short
}

/// Returns whether a path is between a device and pageable memory of the host.
fn has_pageable(TransferPath { src, dst }: TransferPath) -> bool {
    src.device != dst.device && [src.kind, dst.kind].contains(&MemoryKind::Pageable)
}

pub(super) fn ladder(largest: u64) -> impl Iterator<Item = u64> {
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
    // Pageable memory has several methods to choose from. It comes last, for the time that the others leave.
    let kinds = [MemoryKind::Mapped, MemoryKind::Pinned, MemoryKind::Pageable];
    let offered = kinds.into_iter().filter(|kind| host.kinds.contains(kind) || device.kinds.contains(kind));
    offered.map(|kind| (Place::new(DeviceId::Cpu, kind), there)).collect()
}

pub(super) fn paths(a: Place, b: Place) -> impl Iterator<Item = TransferPath> {
    let back = (a != b).then(|| TransferPath::new(b, a));
    [TransferPath::new(a, b)].into_iter().chain(back)
}

impl Run<'_> {
    pub(super) fn now(&self) -> Duration {
        (self.options.clock)()
    }

    /// Measures a pair of devices. Of its memory only two buffers exist at a time.
    fn pair(&mut self, all: &[(Place, Place)]) {
        self.deadline = self.now().saturating_add(self.options.budget);
        let devices = all.first().into_iter().flat_map(|(a, b)| [a.device, b.device]);
        let mut devices = devices.filter(|device| !device.is_cpu());
        if let Err(stop) = devices.clone().try_for_each(|device| await_idle(self, device, BRIEF)) {
            let paths = all.iter().flat_map(|(a, b)| paths(*a, *b));
            return paths.for_each(|path| self.unfinished(path, false, &stop));
        }
        let has_lists = all.iter().flat_map(|(a, b)| paths(*a, *b)).any(|path| has_ways(self.manager, path));
        let for_lists = if has_lists { self.options.budget.mul_f64(FOR_LISTS) } else { Duration::ZERO };
        let refined = self.deadline.saturating_sub(for_lists);
        let mut left: u32 = all.iter().flat_map(|(a, b)| paths(*a, *b)).map(|_| 1).sum();
        // Before the first buffers: what is free does not count what they leave to the next in an allocator.
        let of_memory = |is_half_free| {
            all.first().map_or(Ok(0), |(a, b)| self.largest([a.device, b.device], is_half_free))
        };
        let (largest, wanted) = (of_memory(false), of_memory(true).unwrap_or_default());
        // The curves are those of the values that are used from then on.
        self.staging(all, largest.clone().unwrap_or_default());
        for (a, b) in all {
            if self.reuse_mapped(*a, *b) {
                left = left.saturating_sub(2);
                continue;
            }
            let both = largest.clone().and_then(|largest| self.buffers(*a, *b, largest));
            let shortage = both.as_ref().ok().and_then(|(a, _)| shortage(a, wanted));
            for (path, turned) in paths(*a, *b).zip([false, true]) {
                let now = self.now();
                let finest = now.saturating_add(refined.saturating_sub(now) / left.max(1));
                left = left.saturating_sub(1);
                let measured = match &both {
                    Err(error) => Err(Stop::Failed(error.clone())),
                    Ok((a, b)) if turned => self.path(path, b, a, finest),
                    Ok((a, b)) => self.path(path, a, b, finest),
                };
                match measured {
                    Ok(methods) => {
                        self.calibration.paths.push(PathCalibration { path, methods });
                        if let Some(error) = shortage.clone()
                            && !transload_core::mutant!("transfer/shorter-curves-are-unfinished")
                        {
                            self.unfinished(path, false, &Stop::Failed(error));
                        }
                    }
                    Err(stop) => self.unfinished(path, false, &stop),
                }
            }
        }
        // Lists one by one go by the methods that single copies go by from now on.
        if !transload_core::mutant!("transfer/lists-by-measured-methods") {
            self.manager.registry.set_costs(self.calibration.costs(), CostBasis::Measured);
        }
        // Last: pairs whose lists fail have their costs of single copies. The kernels wake the device, which has
        // waited for the host, and lists are not begun where others hold it by now: that spends the time.
        let _ = devices.try_for_each(|device| await_idle(self, device, self.kernel()));
        for part in ListPart::ALL {
            self.lists_of(all, (&largest, wanted), part);
        }
    }

    /// Takes the curves of mapped memory for both paths of pinned memory, if the same methods may be used: to copies it is the same.
    fn reuse_mapped(&mut self, a: Place, b: Place) -> bool {
        // What a method lacks is found by its first copy otherwise.
        for path in paths(a, b) {
            let _ = self.manager.prepare(path.src, path.dst, &TransferOptions::new());
        }
        let mapped = |place: Place| match place.kind {
            MemoryKind::Pinned => Place::new(place.device, MemoryKind::Mapped),
            _ => place,
        };
        let known = |path: TransferPath| {
            let of = TransferPath::new(mapped(path.src), mapped(path.dst));
            let known = self.calibration.paths.iter().find(|known| of != path && known.path == of)?;
            let (methods, measured) = (self.methods(path).ok()?, self.methods(of).ok()?);
            let is_same = methods.iter().all(|method| measured.contains(method));
            let unfinished = self.calibration.unfinished_of(of).cloned();
            let unfinished = unfinished.map(|unfinished| Unfinished { path, ..unfinished });
            is_same.then(|| (PathCalibration { path, methods: known.methods.clone() }, unfinished))
        };
        let Some(found) = paths(a, b).map(known).collect::<Option<Vec<_>>>() else { return false };
        for (known, unfinished) in found {
            self.done += ladder(self.options.largest).count();
            self.calibration.paths.push(known);
            self.calibration.unfinished.extend(unfinished);
        }
        true
    }

    pub(super) fn unfinished(&mut self, path: TransferPath, lists_only: bool, stop: &Stop) {
        let reason = match stop {
            Stop::Budget => UnfinishedReason::Budget,
            Stop::Cancelled => UnfinishedReason::Cancelled,
            Stop::Failed(error) if error.kind() == ErrorKind::OutOfMemory => {
                UnfinishedReason::OutOfMemory(error.to_string())
            }
            Stop::Failed(error) => UnfinishedReason::Failed(error.to_string()),
        };
        self.calibration.unfinished.push(Unfinished { path, lists_only, reason });
    }

    fn plan(&self, path: TransferPath) -> Result<Plan> {
        self.manager.plan(path.src, path.dst, SMALLEST, &TransferOptions::new())
    }

    /// Returns the methods that may be used on a path.
    fn methods(&self, path: TransferPath) -> Result<Vec<TransferMethod>> {
        let plan = self.plan(path)?;
        Ok(plan.alternatives.iter().map(|other| other.method).chain([plan.method]).collect())
    }

    /// Measures all sizes of a path, and those around crossing points: a few, and further ones until `finest`.
    fn path(
        &mut self,
        path: TransferPath,
        src: &RawBuffer,
        dst: &RawBuffer,
        finest: Duration,
    ) -> Result<Vec<MethodCurve>, Stop> {
        // What a method lacks is found, and told, by its first copy.
        let _ = self.manager.prepare(path.src, path.dst, &TransferOptions::new());
        self.calibration.simulated |= self.plan(path)?.simulated;
        let mut methods = self.methods(path)?;
        self.warm_up(path, (src, dst), &methods)?;
        let mut sizes = Sizes::default();
        for bytes in ladder(src.len() as u64) {
            sizes.add(bytes, self.size((src, dst), &mut methods, bytes)?);
            self.done += 1;
        }
        self.done += ladder(self.options.largest).count() - ladder(src.len() as u64).count();
        let mut middles = 0;
        while !transload_core::mutant!("transfer/refines-crossings")
            && (self.now() < finest || middles < FEWEST_MIDDLES)
            && let Some(bytes) = sizes.next_middle()
        {
            middles += 1;
            match self.size((src, dst), &mut methods, bytes) {
                Ok(middle) => sizes.add(bytes, middle),
                Err(Stop::Failed(error)) => return Err(Stop::Failed(error)),
                // The path is finished, if less fine.
                Err(Stop::Budget | Stop::Cancelled) => break,
            };
        }
        let curve = |method| MethodCurve { method, times: sizes.of(method) };
        Ok(methods.into_iter().map(curve).collect())
    }

    /// Copies pageable memory by each method until a driver has used all of its own staging memory once, or for the share of one size.
    fn warm_up(
        &self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
        methods: &[TransferMethod],
    ) -> Result<(), Stop> {
        let (count, bytes) = WARM_UP;
        if !has_pageable(path) || src.len() < bytes {
            return Ok(());
        }
        let (src, dst) = (src.slice(..bytes)?, dst.slice(..bytes)?);
        for method in methods {
            let end = self.now().saturating_add(self.options.budget / SHARE);
            for _ in 0..count {
                match self.timed(&src, &dst, *method, 1) {
                    Err(Stop::Failed(error)) if is_unusable(*method, &error) => break,
                    timed => drop(timed?),
                }
                if self.now() >= end {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Measures copies of one size by each method in turn to the end, so that changes of the machine affect all. Removes methods that cannot
    /// be used.
    fn size(
        &mut self,
        (src, dst): (&RawBuffer, &RawBuffer),
        methods: &mut Vec<TransferMethod>,
        bytes: u64,
    ) -> Result<Vec<(TransferMethod, MeasuredTime)>, Stop> {
        let path = TransferPath::new(src.place(), dst.place());
        self.tell(path, bytes);
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
                    samples.push(((method, batch), Sample::default()));
                }
                Err(Stop::Failed(error)) if is_unusable(method, &error) => {}
                Err(stop) => return Err(stop),
            }
        }
        methods.retain(|method| samples.iter().any(|((of, _), _)| of == method));
        if methods.is_empty() {
            let text = format!("no method of {path} could be used");
            return Err(Stop::Failed(Error::new(ErrorKind::Unsupported, text)));
        }
        let share = self.options.budget / SHARE;
        // As in a program that repeats its copies.
        let are_repeated = has_pageable(path)
            && bytes >= REPEATED_FROM
            && samples.len() > 1
            && !transload_core::mutant!("transfer/calibrates-repeated-copies");
        loop {
            // Others would take most of the time, if they take long.
            let are_quick = samples.iter().all(|(_, sample)| sample.least() < SLOW);
            let measured = if are_quick { samples.as_mut_slice() } else { contenders(&mut samples) };
            if are_enough(measured.iter().map(|(_, sample)| sample), share) {
                break;
            }
            for ((method, batch), sample) in measured {
                if transload_core::mutant!("transfer/calibrates-in-turns") && sample.is_precise() {
                    continue;
                }
                if are_repeated && sample.least() < QUICK {
                    sample.spend(self.timed(&src, &dst, *method, 1)?);
                }
                sample.add(self.timed(&src, &dst, *method, *batch)?, *batch);
            }
        }
        Ok(samples.into_iter().map(|((method, _), sample)| (method, sample.result(bytes))).collect())
    }

    /// Calls the callback, before a measurement.
    pub(super) fn tell(&mut self, path: TransferPath, bytes: u64) {
        let (done, total) = (self.done, self.total);
        let flow = (self.options.progress)(CalibrationProgress { path, bytes, done, total });
        self.is_cancelled |= flow.is_break();
    }

    /// Returns the time of `batch` copies, one after another.
    pub(super) fn timed(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
        method: TransferMethod,
        batch: u32,
    ) -> Result<Duration, Stop> {
        self.clocked(|| {
            (0..batch).try_for_each(|_| {
                self.manager.copy(src, dst).method(method).timing(Timing::Off).wait().map(drop)
            })
        })
    }

    /// Returns the time of some work, if there is time for it.
    pub(super) fn clocked(&self, work: impl FnOnce() -> Result<()>) -> Result<Duration, Stop> {
        self.check()?;
        let begun = self.now();
        work()?;
        Ok(self.now().saturating_sub(begun))
    }

    /// Looks again and again whether something is over: work of others may hold the device for ever.
    ///
    /// # Errors
    /// Why no more is measured.
    pub(super) fn poll_until(&self, mut is_over: impl FnMut() -> bool) -> Result<(), Stop> {
        while !is_over() {
            thread::yield_now();
            if !transload_core::mutant!("transfer/budget-ends-waits") {
                self.check()?;
            }
        }
        Ok(())
    }

    /// # Errors
    /// Why no more is measured.
    pub(super) fn check(&self) -> Result<(), Stop> {
        if self.is_cancelled {
            return Err(Stop::Cancelled);
        }
        if self.now() < self.deadline { Ok(()) } else { Err(Stop::Budget) }
    }
}
