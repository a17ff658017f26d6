//! Advice, in scenarios that have it and that have not, and followed: what is saved on the software driver's virtual time is what was
//! promised.

use std::{sync::Arc, thread, time::Duration};

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Access, Backend, CostBasis, CostModel, DeviceId, KnownCosts, ListCost, ListModel, ListTime, ListWay,
    MemoryKind, Operation, OperationSampling, PathCost, Place, RawBuffer, StreamPriority, Timing,
    TransferMethod, TransferPath, WorkloadType, submit,
};
use transload_cuda_sim::{
    SimDeviceBuilder,
    harness::{self, EndCheck},
};
use transload_profiler::{Advice, AdviceBasis, AdviceKind, ProfilerOptions, ProfilerReport, StreamProfiler};
use transload_transfer::CrossBackendTransferManager;

use crate::timing_all;

const DIRECT: TransferMethod = TransferMethod::DirectCopy;
const STAGED: TransferMethod = TransferMethod::HostStaged;

/// A manager of one device, profiled. Its fields are dropped in order.
struct Profiled {
    manager: CrossBackendTransferManager,
    profiler: StreamProfiler,
    device: DeviceId,
    _test: EndCheck,
}

impl Profiled {
    /// `None` on a real driver, whose time is not virtual.
    fn new(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Option<Self> {
        Self::with(timing_all(), properties)
    }

    fn with(
        profiler: StreamProfiler,
        properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder,
    ) -> Option<Self> {
        let test = harness::device_with(properties)?.end_check();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        let backend = CudaBackend::open(&config).unwrap();
        profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
        profiler.enable().unwrap();
        let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        manager.register_backend(backend).unwrap();
        Some(Self { manager, profiler, device: DeviceId::Cuda(test.ordinal()), _test: test })
    }

    fn host(&self, kind: MemoryKind, bytes: usize) -> RawBuffer {
        let buffer = self.manager.allocate(DeviceId::Cpu, kind, bytes).unwrap();
        buffer.write().unwrap().fill(7);
        buffer
    }

    fn device(&self, bytes: usize) -> RawBuffer {
        self.manager.allocate(self.device, MemoryKind::Device, bytes).unwrap()
    }

    fn path(&self, kind: MemoryKind) -> TransferPath {
        TransferPath::new(Place::new(DeviceId::Cpu, kind), Place::new(self.device, MemoryKind::Device))
    }

    /// Uploads 16 MiB so often, one at a time.
    fn upload(&self, kind: MemoryKind, method: TransferMethod, times: u32) {
        let (src, dst) = (self.host(kind, 16 << 20), self.device(16 << 20));
        (0..times).for_each(|_| _ = self.manager.copy(&src, &dst).method(method).wait().unwrap());
    }

    /// Pieces of 4 KiB each.
    fn pieces(&self) -> Vec<(RawBuffer, RawBuffer)> {
        let (src, dst) = (self.host(MemoryKind::Pinned, 64 << 12), self.device(64 << 12));
        let piece = |buffer: &RawBuffer, at: usize| buffer.slice(at << 12..(at + 1) << 12).unwrap();
        (0..64).map(|at| (piece(&src, at), piece(&dst, at))).collect()
    }

    fn costs(&self, paths: Vec<PathCost>, lists: Vec<ListCost>) {
        let paths = paths.into_iter().map(|cost| (cost, CostBasis::User)).collect();
        let lists = lists.into_iter().map(|cost| (cost, CostBasis::Measured)).collect();
        let known = KnownCosts { paths, lists };
        self.profiler.set_costs(move || Some(known.clone()));
    }

    fn report(&self) -> ProfilerReport {
        self.manager.drain().unwrap();
        self.profiler.get_comprehensive_report()
    }
}

fn only(report: &ProfilerReport, is_kind: impl Fn(AdviceKind) -> bool) -> Advice {
    let found: Vec<_> = report.advice.iter().filter(|advice| is_kind(advice.kind)).collect();
    let [advice] = &found[..] else { panic!("{report}") };
    let text = report.to_string();
    assert!(text.contains(&format!("advice: {advice}\n")) && advice.simulated, "{text}");
    (*advice).clone()
}

/// Returns the time of all timed transfers by a method.
fn busy(report: &ProfilerReport, method: TransferMethod) -> u64 {
    report.paths.iter().filter(|path| path.method == method).map(|path| path.busy_ns).sum()
}

/// A second run, which did as advised, took `then`.
fn assert_kept(advice: &Advice, then: u64) {
    let (promised, saved) = (advice.saving_ns.unwrap() as f64, advice.took_ns.saturating_sub(then) as f64);
    assert!((0.75..=1.25).contains(&(saved / promised)), "{saved} ns saved: {advice}");
}

fn pins(kind: AdviceKind) -> bool {
    kind == AdviceKind::PinHostMemory
}

#[test]
fn pageable_memory_is_advised_to_be_pinned() {
    let Some(run) = Profiled::new(|device| device) else { return };
    run.upload(MemoryKind::Pageable, DIRECT, 8);
    assert!(!run.report().advice.iter().any(|it| it.saving_ns.is_some()), "nothing tells the alternative");
    run.upload(MemoryKind::Pinned, DIRECT, 2);
    let report = run.report();
    let measured = only(&report, pins);
    assert_eq!((measured.transfers, measured.share), (8, 0.8), "{measured}");
    assert_eq!(measured.basis, Some(AdviceBasis::Transfers(2)));
    let text = measured.to_string();
    let begin =
        format!("80.0 % of the timed bytes, 8 transfers {} by DirectCopy", run.path(MemoryKind::Pageable));
    assert!(text.starts_with(&begin) && text.contains(" GB/s); with the host's side pinned they"), "{text}");
    assert!(
        text.ends_with(" of each second in that direction, by 2 timed transfers that did so (simulated)"),
        "{text}"
    );

    // The same from costs alone.
    let Some(other) = Profiled::new(|device| device) else { return };
    let model = CostModel::linear(Duration::from_micros(6), 55e9);
    let pinned = PathCost { path: other.path(MemoryKind::Pinned), method: DIRECT, model };
    other.costs(vec![pinned], Vec::new());
    other.upload(MemoryKind::Pageable, DIRECT, 8);
    let by_costs = only(&other.report(), pins);
    assert_eq!(by_costs.basis, Some(AdviceBasis::Costs(CostBasis::User)));

    let Some(followed) = Profiled::new(|device| device) else { return };
    followed.upload(MemoryKind::Pinned, DIRECT, 8);
    let report = followed.report();
    assert!(report.advice.is_empty(), "{report}");
    [measured, by_costs].iter().for_each(|advice| assert_kept(advice, busy(&report, DIRECT)));
}

#[test]
fn many_copies_without_times_leave_no_saving() {
    let sampling = OperationSampling { all_from_bytes: 4 << 20, one_in: 0 };
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(sampling));
    let Some(run) = Profiled::with(profiler, |device| device) else { return };
    run.upload(MemoryKind::Pageable, DIRECT, 8);
    run.upload(MemoryKind::Pinned, DIRECT, 2);
    only(&run.report(), pins);
    // A span may include waiting for them.
    run.pieces().iter().for_each(|(src, dst)| _ = run.manager.copy(src, dst).wait().unwrap());
    let report = run.report();
    assert!(report.advice.is_empty() && report.timed_share > Some(0.99), "{report}");
}

#[test]
fn pinning_is_not_advised_where_staging_uses_the_link() {
    // So slow that what each chunk takes besides does not matter.
    let Some(run) = Profiled::new(|device| device.host_link(1.0)) else { return };
    run.upload(MemoryKind::Pinned, DIRECT, 8);
    run.upload(MemoryKind::Pageable, STAGED, 2);
    let report = run.report();
    assert_eq!(report.paths.iter().map(|path| path.timed).sum::<u64>(), 10, "staged ones too: {report}");
    assert!(!report.advice.iter().any(|advice| pins(advice.kind)), "{report}");
}

#[test]
fn faster_method_is_advised() {
    let is_method = |kind| kind == AdviceKind::UseMethod(STAGED);
    let known = |run: &Profiled| {
        let model = CostModel::linear(Duration::from_micros(20), 4.9e9);
        run.costs(vec![PathCost { path: run.path(MemoryKind::Pageable), method: STAGED, model }], Vec::new());
    };
    let Some(run) = Profiled::new(|device| device.host_link(5.0)) else { return };
    run.upload(MemoryKind::Pageable, DIRECT, 8);
    assert!(!run.report().advice.iter().any(|advice| is_method(advice.kind)), "without costs");
    known(&run);
    let advice = only(&run.report(), is_method);
    assert!(advice.to_string().contains("; by HostStaged they would take"), "{advice}");
    let Some(followed) = Profiled::new(|device| device.host_link(5.0)) else { return };
    known(&followed);
    followed.upload(MemoryKind::Pageable, STAGED, 8);
    let report = followed.report();
    assert!(!report.advice.iter().any(|it| matches!(it.kind, AdviceKind::UseMethod(_))), "{report}");
    assert_kept(&advice, busy(&report, STAGED));
}

#[test]
fn cost_of_a_busy_machine_advises_no_other_method() {
    let Some(run) = Profiled::new(|device| device.host_link(5.0)) else { return };
    // Calibrated when the link was ten times as fast: each method takes longer now.
    let cost = |method, rate| PathCost {
        path: run.path(MemoryKind::Pageable),
        method,
        model: CostModel::linear(Duration::from_micros(10), rate),
    };
    run.costs(vec![cost(DIRECT, 16e9), cost(STAGED, 15e9)], Vec::new());
    run.upload(MemoryKind::Pageable, DIRECT, 4);
    let report = run.report();
    assert!(!report.advice.iter().any(|it| matches!(it.kind, AdviceKind::UseMethod(_))), "{report}");
}

#[test]
fn small_transfers_in_a_row_are_advised_to_be_a_list() {
    let is_lists = |kind| matches!(kind, AdviceKind::UseLists { .. });
    let Some(followed) = Profiled::new(|device| device) else { return };
    followed.manager.copy_many(followed.pieces()).wait().unwrap();
    let report = followed.report();
    let list = report.directions.iter().map(|direction| direction.busy_ns).sum();
    assert_eq!((report.paths[0].sampled, report.paths[0].timed), (1, 0), "a list is told apart: {report}");
    assert!(list > 0 && !report.advice.iter().any(|advice| is_lists(advice.kind)), "{report}");

    let known = |run: &Profiled| {
        // The time of a calibration: of 64 pieces, and of half as many.
        let time = |pieces| ListTime {
            pieces,
            bytes: 4096,
            time: Duration::from_micros(6) + Duration::from_nanos(75 * pieces),
        };
        let model = ListModel::through(&[time(32), time(64)]).unwrap();
        let way = ListWay::CopyEngine;
        let cost = ListCost { path: run.path(MemoryKind::Pinned), way, exclusive: true, model };
        run.costs(Vec::new(), vec![cost]);
    };
    let Some(run) = Profiled::new(|device| device) else { return };
    known(&run);
    // Each is waited for, so the next one may need it.
    for (src, dst) in run.pieces() {
        run.manager.copy(&src, &dst).wait().unwrap();
    }
    assert!(!run.report().advice.iter().any(|advice| is_lists(advice.kind)), "{}", run.report());
    let copies: Vec<_> = run.pieces().iter().map(|(src, dst)| run.manager.copy(src, dst).submit()).collect();
    copies.into_iter().for_each(|copy| _ = copy.wait().unwrap());
    let advice = only(&run.report(), is_lists);
    assert_eq!((advice.kind, advice.transfers), (AdviceKind::UseLists { lists: 1 }, 64));
    assert!(
        advice.to_string().contains("submitted in a row; as 1 list, if none needs another, they"),
        "{advice}"
    );
    assert_kept(&advice, list);
}

#[test]
fn wrong_built_in_table_is_advised_to_be_calibrated() {
    let is_calibrate = |kind| matches!(kind, AdviceKind::Calibrate { .. });
    for (link, is_wrong) in [(10.0, true), (55.0, false)] {
        let Some(run) = Profiled::new(|device| device.host_link(link)) else { return };
        run.upload(MemoryKind::Pinned, DIRECT, 4);
        let report = run.report();
        if !is_wrong {
            assert!(report.advice.is_empty(), "{report}");
            continue;
        }
        let advice = only(&report, is_calibrate);
        assert!(advice.saving_ns.is_none(), "{advice}");
        assert!(advice.to_string().contains(": calibrate; what that saves is not known"), "{advice}");
        // As a calibration would.
        let took = Duration::from_nanos(advice.took_ns / 4);
        let model = CostModel::through(&[(0, Duration::from_micros(6)), (16 << 20, took)]).unwrap();
        let Some(followed) = Profiled::new(|device| device.host_link(link)) else { return };
        let path = followed.path(MemoryKind::Pinned);
        followed.manager.set_costs(vec![PathCost { path, method: DIRECT, model }]);
        followed.upload(MemoryKind::Pinned, DIRECT, 4);
        let report = followed.report();
        assert!(report.advice.is_empty() && busy(&report, DIRECT) > 0, "{report}");
    }
}

/// A backend of one device of the software driver.
fn backend() -> Option<(EndCheck, Arc<CudaBackend>, DeviceId)> {
    let test = harness::device_with(|device| device)?.end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let (backend, device) = (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(test.ordinal()));
    Some((test, backend, device))
}

fn profiled(backend: &Arc<CudaBackend>) -> StreamProfiler {
    let profiler = timing_all();
    profiler.attach(&(Arc::clone(backend) as _)).unwrap();
    profiler.enable().unwrap();
    profiler
}

/// As many readings as advice on pinned memory needs.
fn read(profiler: &StreamProfiler) -> ProfilerReport {
    (0..9).for_each(|_| _ = profiler.get_comprehensive_report());
    profiler.get_comprehensive_report()
}

fn has(report: &ProfilerReport, is_kind: impl Fn(AdviceKind) -> bool) -> bool {
    report.advice.iter().any(|advice| is_kind(advice.kind))
}

#[test]
fn pinned_memory_that_is_kept_and_not_used_is_told() {
    let is_kept = |kind| kind == AdviceKind::ReleasePinned;
    let Some((_test, backend, device)) = backend() else { return };
    let pinned = |bytes| backend.allocate(device, MemoryKind::Pinned, bytes).unwrap();
    let (kept, used) = (pinned(32 << 20), pinned(64 << 20));
    let profiler = profiled(&backend);
    assert!(!has(&read(&profiler), is_kept), "all is in use");
    // The profiler's thread may read between the drops: both at once.
    profiler.disable();
    drop((kept, used));
    profiler.enable().unwrap();
    assert_eq!(only(&read(&profiler), is_kept).bytes, 96 << 20, "of the time since some was kept");
    drop(profiler);

    let profiler = profiled(&backend);
    let again = pinned(64 << 20);
    read(&profiler);
    drop(again);
    let advice = only(&read(&profiler), is_kept);
    // Of the other 64 MiB, some was used at a reading.
    assert_eq!((advice.bytes, advice.saving_ns, advice.path), (32 << 20, None, None), "{advice}");
    let text = advice.to_string();
    assert!(text.starts_with("32 MiB of pinned memory were kept for reuse and in no use for "), "{text}");
    drop(profiler);

    // Followed: as many bytes are free.
    let pinned = || backend.pinned().bytes();
    let before = pinned();
    backend.drain().unwrap();
    assert!(before - pinned() >= advice.bytes);
    assert!(read(&profiled(&backend)).advice.is_empty());
}

#[test]
fn pinned_buffers_that_are_held_and_never_used_are_told() {
    let is_held = |kind| matches!(kind, AdviceKind::FreePinned { .. });
    let Some((_test, backend, device)) = backend() else { return };
    // Longer ones are not cached.
    let host = || backend.allocate(device, MemoryKind::Pinned, 96 << 20).unwrap();
    let (unused, used, viewed, lent) = (host(), host(), host(), host());
    let dst = backend.allocate(device, MemoryKind::Device, 1 << 20).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let copy = || {
        let piece = used.slice(..1 << 20).unwrap();
        submit(&*queue, &Operation::Copy { src: &piece, dst: &dst }, Timing::Off).unwrap().wait().unwrap();
    };
    let loan = lent.lend(Access::Write).unwrap();
    copy();
    let profiler = profiled(&backend);
    (0..5).for_each(|_| _ = profiler.get_comprehensive_report());
    assert!(!profiler.get_comprehensive_report().advice.iter().any(|it| is_held(it.kind)), "too early");
    copy();
    drop(viewed.read().unwrap());
    let advice = only(&read(&profiler), is_held);
    assert_eq!((advice.kind, advice.bytes), (AdviceKind::FreePinned { buffers: 1 }, 96 << 20), "{advice}");
    let text = advice.to_string();
    assert!(
        text.starts_with("96 MiB of pinned memory were held in 1 buffer, and no operation or view"),
        "{text}"
    );
    drop(loan);
    // Used once, it is not told, however long that is ago.
    only(&read(&profiler), is_held);

    // Followed: as many bytes are free.
    let before = backend.pinned().bytes();
    drop(unused);
    backend.drain().unwrap();
    assert!(before - backend.pinned().bytes() >= advice.bytes);
    assert!(!has(&read(&profiler), is_held));
    drop(profiler);
    let advice = only(&read(&profiled(&backend)), is_held);
    assert_eq!(advice.bytes, 3 * (96 << 20), "the others were used before only: {advice}");
    drop((used, viewed, lent, dst, queue));
    backend.drain().unwrap();
}

#[test]
fn free_staging_buffers_are_idle_if_none_was_taken_since() {
    let Some((_test, backend, device)) = backend() else { return };
    // One buffer of 4 MiB.
    let manager = CrossBackendTransferManager::builder().staging_limit(0).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 8 << 20).unwrap();
    let dst = manager.allocate(device, MemoryKind::Device, 8 << 20).unwrap();
    src.write().unwrap().fill(7);
    let mut readings = Vec::new();
    for _ in 0..3 {
        manager.copy(&src, &dst).method(STAGED).wait().unwrap();
        readings.push(backend.idle_pinned_bytes());
        // The thread that copied last may not have returned it.
        while backend.idle_pinned_bytes() == 0 {
            thread::yield_now();
        }
        readings.push(backend.idle_pinned_bytes());
    }
    assert_eq!(readings, [0, 4 << 20, 0, 4 << 20, 0, 4 << 20]);
    drop((src, dst));
    manager.drain().unwrap();
    assert_eq!(backend.idle_pinned_bytes(), 0);
}
