//! Advice of the profiler, followed: how far the time that is saved is from what was promised.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend, MemoryKind, OperationSampling, RawBuffer, TransferMethod};
use transload_profiler::{Advice, AdviceKind, ProfilerOptions, ProfilerReport, StreamProfiler};
use transload_transfer::{CalibrationOptions, CrossBackendTransferManager};

use super::Library;
use crate::{
    choice,
    comparison::Fixture,
    memory::Memory,
    row::{Goal, Row, Summary},
};

/// Goal: saved over promised, or the inverse.
const KEPT: f64 = 1.25;
/// Runs as before the advice, and as it says, in turns: one of a pair is one value.
const RUNS: usize = 10;
/// Bytes of a long copy, how many there are in a run, and how many others tell of the alternative.
const LONG: usize = 16 << 20;
const COPIES: usize = 8;
const OTHERS: usize = 4;
/// Bytes and number of small copies in a row.
const SMALL: usize = 4 << 10;
const PIECES: usize = 256;

/// On the software driver, whose times depend on the threads of this machine, there may be no advice, and then no row.
pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let rows = [pinned(fixture)?, method(fixture)?, lists(fixture)?];
    ensure!(fixture.is_simulated() || rows.iter().all(Option::is_some), "the profiler advised nothing");
    Ok(rows.into_iter().flatten().collect())
}

/// A manager with all its transfers timed.
struct Profiled {
    library: Library,
    profiler: StreamProfiler,
}

impl Profiled {
    fn new(fixture: &Fixture<'_>, calibrated: Option<&CrossBackendTransferManager>) -> Result<Self> {
        let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL));
        let builder = CrossBackendTransferManager::builder().registration(false).refinement(false);
        let manager = builder.observer(profiler.observer()).build();
        manager.register_backend(CpuBackend::new()?)?;
        let config = CudaBackendConfig::default().with_devices([fixture.device.ordinal()]);
        let backend = CudaBackend::open(&config)?;
        manager.register_backend(Arc::clone(&backend) as _)?;
        let backend: Arc<dyn Backend> = backend;
        profiler.attach(&backend)?;
        if let Some(calibrated) = calibrated {
            profiler.set_costs(calibrated.costs_reader());
        }
        profiler.enable()?;
        Ok(Self { library: Library { manager, device: fixture.device.id(), peer: None }, profiler })
    }

    fn pinned_or_not(&self, kind: MemoryKind, bytes: usize) -> Result<[RawBuffer; 2]> {
        let src = self.library.allocate(kind, bytes)?;
        Memory::Ours(src.clone()).poison()?;
        Ok([src, self.library.allocate(MemoryKind::Device, bytes)?])
    }

    fn copy(&self, [src, dst]: &[RawBuffer; 2], times: usize) -> Result<()> {
        self.copy_by(TransferMethod::DirectCopy, [src, dst], times)
    }

    fn copy_by(&self, method: TransferMethod, [src, dst]: [&RawBuffer; 2], times: usize) -> Result<()> {
        (0..times)
            .try_for_each(|_| Ok(self.library.manager.copy(src, dst).method(method).wait().map(drop)?))
    }

    fn finish(self) -> Result<ProfilerReport> {
        self.library.manager.drain()?;
        let report = self.profiler.get_comprehensive_report();
        drop(self.profiler);
        self.library.finish()?;
        Ok(report)
    }
}

/// Returns the nanoseconds that advice of a kind promised, and those that it took until then, if there is such advice.
fn promised(report: &ProfilerReport, is_kind: impl Fn(AdviceKind) -> bool) -> Option<(f64, f64)> {
    let of = |advice: &Advice| Some((advice.saving_ns? as f64, advice.took_ns as f64));
    report.advice.iter().filter(|advice| is_kind(advice.kind)).find_map(of)
}

/// The time in which the links of a report's device were busy.
fn busy(report: &ProfilerReport) -> f64 {
    report.directions.iter().map(|direction| direction.busy_ns as f64).sum()
}

/// Pageable memory, which is to be pinned.
fn pinned(fixture: &Fixture<'_>) -> Result<Option<Row>> {
    let bytes = fixture.bytes(LONG);
    let mut found = Vec::new();
    for _ in 0..fixture.few_repetitions(RUNS) {
        let before = Profiled::new(fixture, None)?;
        before.copy(&before.pinned_or_not(MemoryKind::Pageable, bytes)?, COPIES)?;
        before.copy(&before.pinned_or_not(MemoryKind::Pinned, bytes)?, OTHERS)?;
        let pins = |kind| kind == AdviceKind::PinHostMemory;
        let Some((saving, took)) = promised(&before.finish()?, pins) else { return Ok(None) };
        let after = Profiled::new(fixture, None)?;
        after.copy(&after.pinned_or_not(MemoryKind::Pinned, bytes)?, COPIES)?;
        found.push([took - busy(&after.finish()?), saving]);
    }
    let what = format!("{COPIES} copies of {bytes} bytes of pageable memory, pinned");
    Ok(Some(row(fixture, "pin", &what, &found)))
}

/// Copies of pageable memory by the driver, which are to be staged. What staging saves is by the host's clock: between its chunks the link may be idle.
fn method(fixture: &Fixture<'_>) -> Result<Option<Row>> {
    let bytes = fixture.bytes(LONG);
    let (calibrated, staged) = (calibrated(fixture)?, TransferMethod::HostStaged);
    let mut found = Vec::new();
    for _ in 0..fixture.few_repetitions(RUNS) {
        let before = Profiled::new(fixture, Some(&calibrated))?;
        before.copy(&before.pinned_or_not(MemoryKind::Pageable, bytes)?, COPIES)?;
        let stages = |kind| kind == AdviceKind::UseMethod(staged);
        let Some((saving, took)) = promised(&before.finish()?, stages) else { return Ok(None) };
        let after = Profiled::new(fixture, None)?;
        let [src, dst] = after.pinned_or_not(MemoryKind::Pageable, bytes)?;
        // Its threads and its pinned memory are there from then on.
        after.copy_by(staged, [&src, &dst], 1)?;
        let begun = Instant::now();
        after.copy_by(staged, [&src, &dst], COPIES)?;
        found.push([took - begun.elapsed().as_nanos() as f64, saving]);
        drop((src, dst));
        after.finish()?;
    }
    choice::finished(&calibrated)?;
    let what = format!("{COPIES} copies of {bytes} bytes of pageable memory by the driver, staged");
    Ok(Some(row(fixture, "method", &what, &found)))
}

fn calibrated(fixture: &Fixture<'_>) -> Result<CrossBackendTransferManager> {
    let manager = choice::manager(fixture)?;
    let mut options = CalibrationOptions::new();
    if fixture.is_simulated() {
        options = options.largest(64 << 10);
    }
    let _unfinished = manager.calibrate(&options)?;
    Ok(manager)
}

/// Small copies in a row, which are to be lists.
fn lists(fixture: &Fixture<'_>) -> Result<Option<Row>> {
    let calibrated = calibrated(fixture)?;
    let pairs = |run: &Profiled| -> Result<Vec<(RawBuffer, RawBuffer)>> {
        let [src, dst] = run.pinned_or_not(MemoryKind::Pinned, PIECES * SMALL)?;
        let part = |of: &RawBuffer, at: usize| of.slice(at * SMALL..(at + 1) * SMALL);
        (0..PIECES).map(|at| Ok((part(&src, at)?, part(&dst, PIECES - 1 - at)?))).collect()
    };
    let mut found = Vec::new();
    for _ in 0..fixture.few_repetitions(RUNS) {
        let before = Profiled::new(fixture, Some(&calibrated))?;
        let pieces = pairs(&before)?;
        let copies: Vec<_> =
            pieces.iter().map(|(src, dst)| before.library.manager.copy(src, dst).submit()).collect();
        copies.into_iter().try_for_each(|copy| copy.wait().map(drop))?;
        drop(pieces);
        let is_lists = |kind| matches!(kind, AdviceKind::UseLists { .. });
        let Some((saving, took)) = promised(&before.finish()?, is_lists) else { return Ok(None) };
        let after = Profiled::new(fixture, None)?;
        let pieces = pairs(&after)?;
        after.library.manager.copy_many(&pieces).wait()?;
        drop(pieces);
        found.push([took - busy(&after.finish()?), saving]);
    }
    choice::finished(&calibrated)?;
    let what = format!("{PIECES} copies of {SMALL} bytes submitted in a row, as a list");
    Ok(Some(row(fixture, "lists", &what, &found)))
}

/// Each value is what was saved and what was promised, in nanoseconds.
fn row(fixture: &Fixture<'_>, id: &str, what: &str, found: &[[f64; 2]]) -> Row {
    let kept = |[saved, promised]: [f64; 2]| saved / promised;
    let off: Vec<_> = found.iter().map(|both| kept(*both).max(1.0 / kept(*both).max(1e-3))).collect();
    let median = |of: usize| Summary::of(&found.iter().map(|both| both[of] / 1e3).collect::<Vec<_>>()).p50;
    let (saved, promised) = (median(0), median(1));
    let what = format!(
        "advice followed: {what}; saved over promised, or the inverse (medians: {saved:.0} us saved, {promised:.0} promised)"
    );
    fixture
        .row(&format!("advice/{id}"), &what, "advice of the profiler", "x", Summary::of(&off))
        .with_goal(Some(Goal::AtMost(KEPT)))
}
