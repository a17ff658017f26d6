//! Calibration on planted machines: a clock that the copies themselves advance, so that every time is exact.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use transload_core::{
    CostBasis, CostModel, DeviceId, ErrorKind, MemoryKind, Observer, PathCost, Place, TransferEvent,
    TransferMethod, TransferPath, TransferReport,
};
use transload_transfer::{
    Calibration, CalibrationOptions, CrossBackendTransferManager, TransferOptions, UnfinishedReason,
};

use crate::{MOCK, Mock, is_at_rest, mock::MockBackend, tuning::STAGED_LARGEST};

const DIRECT: TransferMethod = TransferMethod::DirectCopy;
const STAGED: TransferMethod = TransferMethod::HostStaged;
const ZERO: TransferMethod = TransferMethod::ZeroCopy;
const LARGEST: u64 = 1 << 20;

/// Latency in microseconds and rate in GB/s of a method on a path, for copies of a size.
pub(crate) type Machine = fn(TransferPath, TransferMethod, u64) -> (f64, f64);

/// The time of a copy in nanoseconds.
pub(crate) fn nanos(machine: Machine, path: TransferPath, method: TransferMethod, bytes: u64) -> f64 {
    let (latency, rate) = machine(path, method, bytes);
    latency * 1e3 + bytes as f64 / rate
}

/// What a copy takes over its time by the machine: by its number, its method, and the method before.
pub(crate) type Factor = fn(usize, TransferMethod, TransferMethod) -> f64;

fn exact(_: usize, _: TransferMethod, _: TransferMethod) -> f64 {
    1.0
}

/// About a quarter of the copies take twice as long; in the order in which a calibration makes them, fewer than half of those of one size and method.
pub(crate) fn noisy(number: usize, _: TransferMethod, _: TransferMethod) -> f64 {
    if number.wrapping_mul(0x9E37_79B1) % 1021 < 255 { 2.0 } else { 1.0 }
}

/// Advances a clock by the time of each completed copy.
struct Planted {
    clock: Arc<AtomicU64>,
    machine: Machine,
    factor: Factor,
    /// Number of the copies, and the method of the latest.
    copies: Mutex<(usize, TransferMethod)>,
}

impl Observer for Planted {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Completed(TransferReport { path, method, bytes, .. }) = event {
            let mut copies = self.copies.lock().unwrap();
            let factor = (self.factor)(copies.0, *method, copies.1);
            *copies = (copies.0 + 1, *method);
            let time = nanos(self.machine, *path, *method, *bytes) * factor;
            self.clock.fetch_add(time as u64, Ordering::SeqCst);
        }
    }
}

pub(crate) struct Setup {
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) backend: Arc<MockBackend>,
    clock: Arc<AtomicU64>,
}

pub(crate) fn setup_with(machine: Machine, factor: Factor) -> Setup {
    let clock = Arc::new(AtomicU64::new(0));
    let copies = Mutex::new((0, DIRECT));
    let planted = Planted { clock: Arc::clone(&clock), machine, factor, copies };
    let backend = Mock { in_place: Some(MOCK), ..Mock::default() }.build();
    let manager = CrossBackendTransferManager::builder().observer(Arc::new(planted)).build();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    Setup { manager, backend, clock }
}

pub(crate) fn setup(machine: Machine) -> Setup {
    setup_with(machine, exact)
}

impl Setup {
    pub(crate) fn options(&self) -> CalibrationOptions {
        let clock = Arc::clone(&self.clock);
        let now = move || Duration::from_nanos(clock.load(Ordering::SeqCst));
        CalibrationOptions::new().largest(LARGEST).clock(now)
    }

    pub(crate) fn calibrate(&self) -> Calibration {
        self.manager.calibrate(&self.options()).unwrap()
    }

    fn method(&self, path: TransferPath, bytes: u64) -> TransferMethod {
        let plan = self.manager.plan(path.src, path.dst, bytes, &TransferOptions::new()).unwrap();
        assert_eq!(plan.basis, CostBasis::Measured, "{plan}");
        plan.method
    }
}

pub(crate) fn upload(kind: MemoryKind) -> TransferPath {
    TransferPath::new(Place::new(DeviceId::Cpu, kind), Place::new(MOCK, MemoryKind::Device))
}

fn back(path: TransferPath) -> TransferPath {
    TransferPath::new(path.dst, path.src)
}

/// Sizes on the measured steps, between them and beyond them.
fn sizes() -> impl Iterator<Item = u64> {
    (0..24).flat_map(|power| [64_u64 << power, 90 << power, 111 << power])
}

/// The link is the bottleneck: staging uses all of it, and the driver a third.
pub(crate) fn slow_link(path: TransferPath, method: TransferMethod, _: u64) -> (f64, f64) {
    match (path.src.kind == MemoryKind::Pageable || path.dst.kind == MemoryKind::Pageable, method) {
        (true, DIRECT) => (8.0, 0.3),
        (true, _) => (20.0, 1.5),
        (false, DIRECT) => (8.0, 1.0),
        (false, _) => (5.0, 0.9),
    }
}

/// The link is faster than the host's threads.
fn few_cores(path: TransferPath, method: TransferMethod, _: u64) -> (f64, f64) {
    match method {
        STAGED => (15.0, 4.0),
        DIRECT if path.src.kind == MemoryKind::Pageable => (8.0, 8.0),
        DIRECT => (8.0, 200.0),
        _ => (30.0, 100.0),
    }
}

/// Link and threads are fast, and the driver copies pageable memory slowly.
fn fast_link(path: TransferPath, method: TransferMethod, _: u64) -> (f64, f64) {
    match method {
        STAGED if path.dst.device.is_cpu() => (12.0, 60.0),
        STAGED => (30.0, 90.0),
        DIRECT => (8.0, 15.0),
        _ => (2.0, 40.0),
    }
}

/// Every chunk costs more than the driver's whole copy.
fn staging_slower(_: TransferPath, method: TransferMethod, _: u64) -> (f64, f64) {
    match method {
        DIRECT => (5.0, 20.0),
        STAGED => (50.0, 15.0),
        _ => (6.0, 19.0),
    }
}

/// The driver copies by itself up to 20,000 bytes, and staging has a thread for each 100,000. So they cross five times.
fn steps(_: TransferPath, method: TransferMethod, bytes: u64) -> (f64, f64) {
    match method {
        DIRECT if bytes <= 20_000 => (6.0, 10.0),
        DIRECT => (14.0, 10.0),
        STAGED => (10.0, 8.0 * bytes.div_ceil(100_000).min(4) as f64),
        _ => (30.0, 10.0),
    }
}

const MACHINES: [Machine; 5] = [slow_link, few_cores, fast_link, staging_slower, steps];

#[test]
fn planted_machines_lead_to_their_fastest_methods() {
    for (number, machine) in MACHINES.into_iter().enumerate() {
        let setup = setup(machine);
        let found = setup.calibrate();
        assert_eq!(found.unfinished, [], "machine {number}");
        // Pageable within the host, three kinds of host memory both ways, and device memory within the device.
        assert_eq!(found.paths.len(), 8);
        for calibrated in found.paths.iter().filter(|path| path.methods.len() > 1) {
            let path = calibrated.path;
            for bytes in sizes() {
                let time = |method| nanos(machine, path, method, bytes);
                let methods = calibrated.methods.iter().map(|curve| curve.method);
                let methods = methods.filter(|method| *method != ZERO);
                let best = methods.min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap();
                let chosen = setup.method(path, bytes);
                let regret = time(chosen) / time(best);
                // Between two measured sizes nobody knows where a step is.
                assert!(
                    regret <= if number == 4 { 1.1 } else { 1.03 },
                    "machine {number}, {path}, {bytes} bytes: {chosen}, {best}: {regret}"
                );
            }
        }
        assert!(is_at_rest(&setup.manager));
    }
}

#[test]
fn crossing_points_are_found_and_printed() {
    let setup = setup(slow_link);
    let found = setup.calibrate();
    let path = upload(MemoryKind::Pageable);
    let calibrated = found.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
    // 8 µs + b / 0.3 GB/s = 20 µs + b / 1.5 GB/s.
    let exact = 12_000.0 / (1.0 / 0.3 - 1.0 / 1.5);
    let crossings = calibrated.crossings();
    assert_eq!(crossings.len(), 1, "{crossings:?}");
    let crossing = crossings[0];
    assert_eq!((crossing.from, crossing.to), (DIRECT, STAGED));
    assert!((crossing.bytes as f64 / exact - 1.0).abs() < 0.02, "{crossing}, {exact}");
    assert_eq!(setup.manager.crossings(path.src, path.dst, &TransferOptions::new()).unwrap(), crossings);
    assert_eq!(setup.method(path, crossing.bytes - 1), DIRECT);
    assert_eq!(setup.method(path, crossing.bytes), STAGED);
    assert!(crossing.to_string().contains("on HostStaged instead of DirectCopy"), "{crossing}");
    // Finer around the crossing than elsewhere.
    let times = &calibrated.methods[0].times;
    let near = times.iter().filter(|time| (4096..=16_384).contains(&time.bytes)).count();
    assert!(near >= 4 && times.len() < 16, "{times:?}");
}

#[test]
fn step_of_a_curve_is_found_within_a_twentieth() {
    let found = setup(steps).calibrate();
    let path = upload(MemoryKind::Pageable);
    let calibrated = found.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
    let first = calibrated.crossings()[0];
    assert_eq!((first.from, first.to), (DIRECT, STAGED));
    assert!((0.94..=1.06).contains(&(first.bytes as f64 / 20_000.0)), "{first}");
}

#[test]
fn step_of_a_curve_is_found_whatever_the_time() {
    let path = upload(MemoryKind::Pageable);
    let within = |budget| {
        let setup = setup(steps);
        setup.manager.calibrate(&setup.options().budget(budget)).unwrap()
    };
    let budgets = (0..40).map(|step| Duration::from_millis(2).mul_f64(1.1_f64.powi(step)));
    // The shortest that suffices.
    let found = budgets.map(within).find(|found| found.unfinished.iter().all(|it| it.path != path)).unwrap();
    let calibrated = found.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
    let first = calibrated.crossings()[0];
    assert!((0.9..=1.1).contains(&(first.bytes as f64 / 20_000.0)), "{first}: {:?}", calibrated.methods);
}

#[test]
fn methods_that_are_alike_are_not_measured_at_many_sizes() {
    let found = setup(|_, method, _| if method == STAGED { (5.0, 19.9) } else { (5.0, 20.0) }).calibrate();
    let most = found.paths.iter().flat_map(|path| &path.methods).map(|curve| curve.times.len()).max();
    // Steps of two, where time grows with size at all.
    assert!(most <= Some(14), "{most:?}");
}

#[test]
fn kernel_that_is_faster_alone_is_not_chosen() {
    let setup = setup(fast_link);
    let path = upload(MemoryKind::Mapped);
    let mut found = setup.calibrate();
    let calibrated = found.paths.iter_mut().find(|calibrated| calibrated.path == path).unwrap();
    // The mock has no kernel to measure.
    let mut kernel = calibrated.methods[0].clone();
    kernel.method = ZERO;
    kernel.times.iter_mut().for_each(|time| time.median /= 4);
    calibrated.methods.push(kernel);
    assert_eq!(calibrated.crossings(), []);
    setup.manager.use_calibration(&found).unwrap();
    let plan = |options| setup.manager.plan(path.src, path.dst, 4096, &options).unwrap();
    let usual = plan(TransferOptions::new());
    assert_eq!((usual.method, usual.basis), (DIRECT, CostBasis::Measured));
    let kernel = usual.alternatives.iter().find(|other| other.method == ZERO).unwrap();
    assert!(kernel.predicted < usual.predicted, "{usual}");
    assert!(usual.to_string().contains("faster alone, but waits for other kernels: ZeroCopy"), "{usual}");
    assert_eq!(plan(TransferOptions::new().only(ZERO)).method, ZERO);
    // The user knows what runs there.
    setup.manager.set_costs(found.costs());
    assert_eq!(plan(TransferOptions::new()).method, ZERO);
}

#[test]
fn noise_in_last_times_makes_no_crossing_beyond_them() {
    let setup = setup(slow_link);
    let mut found = setup.calibrate();
    let path = upload(MemoryKind::Pageable);
    let at = found.paths.iter().position(|calibrated| calibrated.path == path).unwrap();
    let direct = found.paths[at].methods.iter_mut().find(|curve| curve.method == DIRECT).unwrap();
    let [.., before, last] = direct.times.as_mut_slice() else { panic!("few times") };
    // As if larger copies took no longer.
    before.median = last.median;
    setup.manager.use_calibration(&found).unwrap();
    assert_eq!(found.paths[at].crossings().len(), 1);
    for bytes in [LARGEST, LARGEST + 1, 1 << 30, 1 << 40] {
        assert_eq!(setup.method(path, bytes), STAGED, "{bytes}");
    }
}

#[test]
fn noise_is_measured_and_the_median_counts() {
    let setup = setup_with(slow_link, noisy);
    let found = setup.calibrate();
    let path = upload(MemoryKind::Pinned);
    let calibrated = found.paths.iter().find(|calibrated| calibrated.path == path).unwrap();
    let curve = calibrated.methods.iter().find(|curve| curve.method == DIRECT).unwrap();
    // Smaller ones are timed several at once, and their mean counts.
    for time in curve.times.iter().filter(|time| time.bytes >= 65_536) {
        let exact = nanos(slow_link, path, DIRECT, time.bytes);
        let ratio = time.median.as_nanos() as f64 / exact;
        assert!((0.99..=1.01).contains(&ratio), "{time:?}: {ratio}");
        assert!(time.noise <= time.median, "{time:?}");
    }
    assert!(curve.times.iter().any(|time| time.repetitions > 5), "{curve:?}");
}

#[test]
fn costs_of_the_user_stay_and_all_are_read_back() {
    let setup = setup(slow_link);
    let path = upload(MemoryKind::Pageable);
    let pinned = PathCost { path, method: DIRECT, model: CostModel::linear(Duration::from_nanos(1), 1e12) };
    setup.manager.set_costs(vec![pinned.clone()]);
    let found = setup.calibrate();
    let costs = setup.manager.costs();
    assert!(costs.contains(&(pinned, CostBasis::User)));
    let measured = found.costs();
    let expected = measured.iter().filter(|cost| (cost.path, cost.method) != (path, DIRECT));
    for cost in expected {
        assert!(costs.contains(&(cost.clone(), CostBasis::Measured)), "{cost:?}");
    }
    let plan = setup.manager.plan(path.src, path.dst, LARGEST, &TransferOptions::new()).unwrap();
    assert_eq!((plan.method, plan.basis), (DIRECT, CostBasis::User));
    assert!(plan.alternatives.iter().any(|other| other.basis == CostBasis::Measured), "{plan}");
    // Measured again, the new times count.
    setup.manager.use_calibration(&found).unwrap();
    assert_eq!(setup.method(back(path), LARGEST), STAGED);
}

#[test]
fn spent_budget_leaves_earlier_costs() {
    let setup = setup(slow_link);
    // 1 MiB of pageable memory takes 3.5 ms a copy.
    let found = setup.manager.calibrate(&setup.options().budget(Duration::from_millis(20))).unwrap();
    let path = upload(MemoryKind::Pageable);
    let unfinished = found.unfinished.iter().find(|unfinished| unfinished.path == path).unwrap();
    assert_eq!(unfinished.reason, UnfinishedReason::Budget);
    assert!(found.paths.iter().all(|calibrated| calibrated.path != path));
    let plan = setup.manager.plan(path.src, path.dst, LARGEST, &TransferOptions::new()).unwrap();
    assert_eq!(plan.basis, CostBasis::BuiltIn);
    let single = found.unfinished.iter().filter(|unfinished| !unfinished.lists_only).count();
    assert_eq!(found.paths.len() + single, 8);
    assert!(is_at_rest(&setup.manager));
}

#[test]
fn callback_sees_every_size_and_cancels() {
    let setup = setup(slow_link);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&seen);
    let all = setup.options().progress(move |at| {
        assert!(at.done < at.total && at.bytes <= LARGEST, "{at:?}");
        all.lock().unwrap().push((at.path, at.bytes));
        ControlFlow::Continue(())
    });
    let found = setup.manager.calibrate(&all).unwrap();
    assert_eq!(found.paths.len(), 8);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let paths: Vec<_> = found.paths.iter().map(|measured| measured.path).collect();
    // Those of pinned memory have the curves of mapped memory.
    let is_pinned = |path: &TransferPath| [path.src.kind, path.dst.kind].contains(&MemoryKind::Pinned);
    let measured: Vec<_> = paths.iter().copied().filter(|path| !is_pinned(path)).collect();
    for size in measured.iter().flat_map(|path| (0..7).map(move |step| (*path, 256 << (2 * step)))) {
        assert!(seen.contains(&size), "{size:?}");
    }
    // Lists come after all single copies of the pair.
    let mut order: Vec<_> = seen.iter().map(|(path, _)| *path).collect();
    order.dedup();
    let last_pair = order.len() - 2;
    assert_eq!(order[..5], measured[..5]);
    assert!(order[5..last_pair].iter().all(|path| paths[1..7].contains(path)), "{order:?}");

    let third = found.paths[2].path;
    let some = setup.options().progress(move |at| {
        if at.path == third { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let found = setup.manager.calibrate(&some).unwrap();
    let single = found.unfinished.iter().filter(|unfinished| !unfinished.lists_only).count();
    assert_eq!((found.paths.len(), single), (2, 6));
    assert!(found.unfinished.iter().all(|unfinished| unfinished.reason == UnfinishedReason::Cancelled));

    // At the first list.
    let some = setup.options().progress(move |at| {
        if is_pinned(&at.path) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let found = setup.manager.calibrate(&some).unwrap();
    let of_lists = found.unfinished.iter().filter(|unfinished| unfinished.lists_only).count();
    assert_eq!((found.paths.len(), of_lists, found.unfinished.len()), (7, 6, 7), "{:?}", found.unfinished);
    assert!(is_at_rest(&setup.manager));
}

#[test]
fn device_lost_while_measuring_is_told_and_leaves_nothing() {
    let setup = setup(slow_link);
    let backend = Arc::clone(&setup.backend);
    let lose = setup.options().progress(move |at| {
        if at.path == back(upload(MemoryKind::Pageable)) && at.bytes == 4096 {
            backend.lose(MOCK);
        }
        ControlFlow::Continue(())
    });
    let found = setup.manager.calibrate(&lose).unwrap();
    let finished: Vec<_> = found.paths.iter().map(|calibrated| calibrated.path).collect();
    assert!(finished.contains(&upload(MemoryKind::Pageable)) && finished.len() == 6, "{finished:?}");
    let of_lists = found.unfinished.iter().filter(|unfinished| unfinished.lists_only).count();
    assert_eq!(found.unfinished.len(), 2 + of_lists);
    let failed =
        |reason: &UnfinishedReason| matches!(reason, UnfinishedReason::Failed(text) if !text.is_empty());
    assert!(found.unfinished.iter().all(|unfinished| failed(&unfinished.reason)), "{found:?}");
    let _the_loss = setup.manager.drain();
    assert!(is_at_rest(&setup.manager), "{:?}", setup.manager.resource_counts());
}

#[test]
fn options_that_measure_nothing_are_refused() {
    let setup = setup(slow_link);
    for options in
        [setup.options().largest(0), setup.options().largest(1023), setup.options().budget(Duration::ZERO)]
    {
        let error = setup.manager.calibrate(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("valid"), "{error}");
    }
}

#[test]
fn calibration_that_can_be_no_measurement_is_refused() {
    let setup = setup(slow_link);
    let found = setup.manager.calibrate(&setup.options().largest(STAGED_LARGEST)).unwrap();
    let other = CrossBackendTransferManager::new();
    let changes: [fn(&mut Calibration); 8] = [
        |found| found.staging[0].tuning.upload_segment = 1 << 40,
        |found| found.staging[0].device = DeviceId::Cpu,
        |found| found.paths[1].methods[0].times[3].median = Duration::ZERO,
        |found| found.paths[1].methods[0].times[3].median = Duration::MAX,
        |found| found.paths[1].methods[0].times[3].bytes = u64::MAX,
        |found| found.paths[1].methods[0].times[3].bytes = 1,
        |found| found.paths[1].methods[0].times.truncate(1),
        |found| found.paths[1].methods[0].method = TransferMethod::Fill,
    ];
    for change in changes {
        let mut damaged = found.clone();
        change(&mut damaged);
        assert_eq!(other.use_calibration(&damaged).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(other.costs().is_empty(), "nothing of it is used");
    }
    other.use_calibration(&found).unwrap();
    assert!(!other.costs().is_empty());
}

#[test]
fn unfinished_paths_keep_an_earlier_calibration() {
    let setup = setup(slow_link);
    let (earlier, mut later) = (setup.calibrate(), setup.calibrate());
    later.paths.truncate(3);
    later.keep_from(earlier.clone());
    let paths = |calibration: &Calibration| {
        let mut paths: Vec<_> = calibration.paths.iter().map(|calibrated| calibrated.path).collect();
        paths.sort();
        paths
    };
    assert_eq!(paths(&later), paths(&earlier));
}

#[cfg(feature = "serde")]
#[test]
fn calibration_reads_back() {
    let setup = setup(slow_link);
    let found = setup.manager.calibrate(&setup.options().largest(STAGED_LARGEST)).unwrap();
    assert_eq!(found.staging.len(), 1);
    // The mock is a third party's device, which cannot be read back.
    let text = serde_json::to_string(&found).unwrap().replace("mock:0", "cuda:0");
    let read: Calibration = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(value["paths"][1]["methods"][0]["times"][0]["median_seconds"].as_f64().unwrap() > 0.0);
}
