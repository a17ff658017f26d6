//! Calibration of planted machines on the software driver, by its virtual time: each leads to its fastest methods, within bounded
//! memory, and a device that fails meanwhile leaves nothing.

use std::{
    ops::ControlFlow,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use transload::{
    DeviceId, ListWay, MemoryKind, Place, Result, Runtime, TransferMethod,
    backend::{CostBasis, Crossing, TransferOptions, TransferPath},
    calibration::{Calibrated, CalibrationOptions, CalibrationStore, StagingTuning, UnfinishedReason},
    cuda::CudaBackendConfig,
};
use transload_cuda_sim::{
    SimDevice, SimDeviceBuilder,
    harness::{self, TestDevice},
};

const DIRECT: TransferMethod = TransferMethod::DirectCopy;
const STAGED: TransferMethod = TransferMethod::HostStaged;
const LARGEST: u64 = 4 << 20;
const MIB: u64 = 1 << 20;

struct Machine {
    test: TestDevice,
    runtime: Runtime,
}

impl Machine {
    fn of(test: TestDevice) -> Self {
        Self::with_threads(test, 4)
    }

    fn with_threads(test: TestDevice, threads: usize) -> Self {
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        let store = CalibrationStore::None;
        let runtime = Runtime::builder().cuda(config).calibration(store).threads(threads).discover().unwrap();
        Self { test, runtime }
    }

    fn sim(&self) -> SimDevice {
        *self.test.sim().unwrap()
    }

    /// Measures by the device's virtual time. What host threads do takes none.
    fn options(&self) -> CalibrationOptions {
        let sim = self.sim();
        // Short kernels: a poll takes as long as some of them in virtual time, before copies go on.
        let options = CalibrationOptions::new().kernel(Duration::from_micros(5));
        options.largest(LARGEST).budget(Duration::from_secs(60)).clock(move || sim.now())
    }

    /// A process calibrates once at a time: so do its tests.
    fn calibrate(&self, options: &CalibrationOptions) -> Result<Calibrated> {
        static ONE: Mutex<()> = Mutex::new(());
        let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.calibrate(options)
    }

    /// Up from a kind of host memory, or down to it.
    fn path(&self, kind: MemoryKind, up: bool) -> TransferPath {
        let host = Place::new(DeviceId::Cpu, kind);
        let there = Place::new(DeviceId::Cuda(self.test.ordinal()), MemoryKind::Device);
        if up { TransferPath::new(host, there) } else { TransferPath::new(there, host) }
    }

    fn method(&self, path: TransferPath, bytes: u64) -> TransferMethod {
        let plan = self.runtime.plan(path.src, path.dst, bytes).unwrap();
        assert_eq!(plan.basis, CostBasis::Measured, "{plan}");
        assert!(plan.simulated && plan.to_string().contains("(measured here) (simulated)"), "{plan}");
        plan.method
    }

    fn crossings(&self, path: TransferPath) -> Vec<Crossing> {
        self.runtime.manager().crossings(path.src, path.dst, &TransferOptions::new()).unwrap()
    }

    fn finish(self) {
        let Self { test, runtime } = self;
        runtime.drain().unwrap();
        drop(runtime);
        test.assert_no_races();
        test.assert_no_live_objects();
    }
}

#[test]
fn slow_link_is_staged_and_slow_host_copies_are_not() {
    // Staging uses all of the link, the driver's copy of pageable memory three tenths of it.
    let slow_link = harness::device_with(|sim| sim.host_link(1.0).latency(Duration::from_micros(5)));
    // The host's copy alone takes longer than the driver's, however it is divided.
    let slow_host = harness::device_with(|sim| sim.host_link(500.0).host_copies(Some(1.0)));
    let (Some(slow_link), Some(slow_host)) = (slow_link, slow_host) else { return };
    for (test, large) in [(slow_link, STAGED), (slow_host, DIRECT)] {
        let machine = Machine::of(test);
        let found = machine.calibrate(&machine.options()).unwrap();
        let calibration = &found.calibration;
        assert!(
            found.stored.is_err() && calibration.simulated && calibration.unfinished.is_empty(),
            "{found:?}"
        );
        for up in [true, false] {
            let path = machine.path(MemoryKind::Pageable, up);
            for bytes in [2 * MIB, 3 * MIB, LARGEST, 64 * MIB] {
                assert_eq!(machine.method(path, bytes), large, "{bytes}");
            }
            // A list of one copy goes by the method that was just measured to be the fastest, not by that of the built-in table.
            let singles = calibration.paths.iter().find(|measured| measured.path == path).unwrap();
            let fastest = machine.method(path, MIB / 4);
            let curves = singles.methods.iter().filter(|curve| curve.method == fastest);
            let mut single = curves.flat_map(|curve| &curve.times).filter(|time| time.bytes == MIB / 4);
            let lists = calibration.lists.iter().filter(|list| list.path == path && list.exclusive);
            let one_by_one = lists.filter(|list| list.way == ListWay::OneByOne).flat_map(|list| &list.times);
            let mut alone = one_by_one.filter(|list| list.pieces == 1 && list.time.bytes == MIB / 4);
            let (single, alone) = (single.next().unwrap().median, alone.next().unwrap().time.median);
            assert!(alone < single.mul_f64(1.1), "{path}: {alone:?} in a list, {single:?} by itself");
        }
        machine.finish();
    }
}

#[test]
fn kernel_that_is_faster_alone_is_not_chosen() {
    // A kernel begins in half the time, and is slower on the link than nothing.
    let Some(test) = harness::device_with(|sim| sim.host_link(50.0).latency(Duration::from_micros(30)))
    else {
        return;
    };
    let machine = Machine::of(test);
    let found = machine.calibrate(&machine.options().largest(256 << 10)).unwrap();
    for kind in [MemoryKind::Pinned, MemoryKind::Mapped] {
        let path = machine.path(kind, true);
        let by_plan = machine.crossings(path);
        let calibrated = found.calibration.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
        assert_eq!(by_plan, calibrated.crossings(), "{path}");
        assert_eq!(machine.method(path, 4096), DIRECT);
        let plan = machine.runtime.plan(path.src, path.dst, 4096).unwrap();
        assert!(plan.to_string().contains("faster alone, but waits for other kernels: ZeroCopy"), "{plan}");
    }
    machine.finish();
}

#[test]
fn memory_is_bounded_by_an_eighth_of_what_is_free() {
    let Some(test) = harness::device_with(|sim| sim.total_memory(2 << 20)) else { return };
    let machine = Machine::of(test);
    let (runtime, cuda) = (machine.runtime.clone(), DeviceId::Cuda(machine.test.ordinal()));
    let options = machine.options().progress(move |at| {
        // The runtime's other device is the host, which has more.
        let of_device = [at.path.src, at.path.dst].iter().any(|place| !place.device.is_cpu());
        let held = runtime.manager().backend(cuda).unwrap().resource_counts();
        assert!(!of_device || at.bytes <= 256 << 10, "{at:?}: {held}");
        ControlFlow::Continue(())
    });
    let found = machine.calibrate(&options).unwrap().calibration;
    // It holds the runtime.
    drop(options);
    assert_eq!(found.unfinished, []);
    let largest =
        |path: &transload::calibration::PathCalibration| path.methods[0].times.last().unwrap().bytes;
    let pageable = machine.path(MemoryKind::Pageable, true);
    assert!(found.paths.iter().any(|path| path.path == pageable && largest(path) == 256 << 10), "{found:?}");
    machine.finish();
}

#[test]
fn device_lost_in_the_middle_leaves_the_hosts_calibration() {
    const ILLEGAL_ADDRESS: u32 = 700;
    let Some(test) = harness::device_with(|sim| sim) else { return };
    let machine = Machine::of(test);
    let (sim, broken) = (machine.sim(), machine.path(MemoryKind::Pinned, true));
    let begun = Instant::now();
    let options = machine.options().clock(move || begun.elapsed()).largest(64 << 10).progress(move |at| {
        if at.path == broken && at.bytes == 1024 {
            sim.poison(ILLEGAL_ADDRESS);
        }
        ControlFlow::Continue(())
    });
    let found = machine.calibrate(&options).unwrap().calibration;
    let reason =
        |path| found.unfinished.iter().find(|unfinished| unfinished.path == path).map(|it| &it.reason);
    assert!(matches!(reason(broken), Some(UnfinishedReason::Failed(_))), "{found:?}");
    let plan = machine.runtime.manager().plan(broken.src, broken.dst, 1024, &TransferOptions::new());
    assert!(plan.is_err(), "the device is lost");
    let within = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    assert_eq!(machine.runtime.plan(within, within, 4096).unwrap().basis, CostBasis::Measured);
    let _the_loss = machine.runtime.drain();
    machine.runtime.drain().unwrap();
    for (backend, counts) in machine.runtime.manager().resource_counts() {
        assert!(counts.is_empty(), "{backend}: {counts}");
    }
}

/// The virtual time of a staged download with these values: the median of several.
fn staged_time(machine: &Machine, bytes: usize, tuning: StagingTuning) -> Duration {
    let (manager, device) = (machine.runtime.manager(), DeviceId::Cuda(machine.test.ordinal()));
    manager.set_staging_tuning(device, tuning).unwrap();
    let path = machine.path(MemoryKind::Pageable, false);
    let [src, dst] =
        [path.src, path.dst].map(|place| manager.allocate(place.device, place.kind, bytes).unwrap());
    // Both are in place, and the destination's pages exist.
    dst.write().unwrap().fill(1);
    manager.copy(&dst, &src).wait().unwrap();
    let sim = machine.sim();
    let mut times = [(); 7].map(|()| {
        let begun = sim.now();
        manager.copy(&src, &dst).method(STAGED).wait().unwrap();
        sim.now() - begun
    });
    times.sort();
    times[3]
}

#[test]
fn staging_by_few_calls_is_found_where_each_takes_long() {
    // Each driver call takes as long as 5 MB of the link: so much that it decides, whichever of the threads copies what.
    let slow_calls = |sim: SimDeviceBuilder| sim.host_link(50.0).latency(Duration::from_micros(100));
    let Some(test) = harness::device_with(slow_calls) else { return };
    let machine = Machine::with_threads(test, 1);
    let options = machine.options().largest(16 << 20).progress(|at| {
        // Before the first curve.
        let is_pageable = [at.path.src, at.path.dst].iter().any(|place| place.kind == MemoryKind::Pageable);
        let is_within = at.path.src == at.path.dst;
        if is_pageable || is_within { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let calibration = machine.calibrate(&options).unwrap().calibration;
    let device = DeviceId::Cuda(machine.test.ordinal());
    let [found] = calibration.staging.as_slice() else { panic!("{:?}", calibration.staging) };
    assert_eq!(found.device, device);
    let used = machine.runtime.manager().staging_tuning(device).unwrap();
    assert_eq!(used, (found.tuning, CostBasis::Measured));
    let (tuned, built_in) = (found.tuning, StagingTuning::default());
    assert!(tuned.download_segment > built_in.download_segment, "{tuned}");
    let [tuned, built_in] = [tuned, built_in].map(|tuning| staged_time(&machine, 8 << 20, tuning));
    assert!(tuned < built_in, "{tuned:?}, the built-in values' {built_in:?}");
    machine.finish();
}

#[test]
fn cancelled_calibration_runs_no_more_kernels() {
    const KERNEL: Duration = Duration::from_millis(50);
    let Some(test) = harness::device_with(|sim| sim.host_link(50.0)) else { return };
    let machine = Machine::of(test);
    let (seen, cancelled) = (Mutex::new(Vec::new()), std::sync::Arc::new(Mutex::new(None)));
    let (sim, at) = (machine.sim(), std::sync::Arc::clone(&cancelled));
    let progress = move |progress: transload::calibration::CalibrationProgress| {
        let mut seen = seen.lock().unwrap();
        if !seen.contains(&progress.path) {
            seen.push(progress.path);
        }
        // Some paths are measured by then, and no list.
        if seen.len() < 4 {
            return ControlFlow::Continue(());
        }
        at.lock().unwrap().get_or_insert_with(|| sim.now());
        ControlFlow::Break(())
    };
    let options = machine.options().largest(64 << 10).kernel(KERNEL).progress(progress);
    drop(machine.calibrate(&options).unwrap());
    let cancelled = cancelled.lock().unwrap().unwrap();
    let more = machine.sim().now() - cancelled;
    assert!(more < KERNEL, "{more:?} of virtual time after the calibration was cancelled");
    machine.finish();
}

#[test]
fn long_kernels_do_not_exceed_the_budget_many_times() {
    const BUDGET: Duration = Duration::from_millis(20);
    let Some(test) = harness::device_with(|sim| sim.host_link(50.0)) else { return };
    let machine = Machine::of(test);
    let kernel = Duration::from_millis(50);
    let begun = machine.sim().now();
    drop(machine.calibrate(&machine.options().largest(64 << 10).budget(BUDGET).kernel(kernel)).unwrap());
    let took = machine.sim().now() - begun;
    assert!(took < 4 * (BUDGET + kernel), "{took:?} with a budget of {BUDGET:?}");
    machine.finish();
}
