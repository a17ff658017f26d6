//! Costs follow what transfers take, and the second best method is tried now and then. Planted times are seconds, so that what the
//! host itself takes is nothing beside them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use transload_core::{
    CostBasis, CostModel, ErrorKind, MemoryKind, PathCost, Place, RawBuffer, StreamPriority, Timing,
    TransferMethod, TransferPath, TransferReport,
};
use transload_transfer::{CrossBackendTransferManager, ManagerBuilder, Plan, Sampling, TransferOptions};

use crate::{DeviceId, MOCK, Mock, is_at_rest, mock::MockBackend, pair};

const DIRECT: TransferMethod = TransferMethod::DirectCopy;
const STAGED: TransferMethod = TransferMethod::HostStaged;
const MIB: usize = 1 << 20;

fn upload() -> TransferPath {
    TransferPath::new(Place::new(DeviceId::Cpu, MemoryKind::Pageable), Place::new(MOCK, MemoryKind::Device))
}

fn costs(staged_seconds: u64) -> Vec<PathCost> {
    let cost = |method, seconds| PathCost {
        path: upload(),
        method,
        model: CostModel::linear(Duration::from_secs(seconds), 1e15),
    };
    vec![cost(DIRECT, 10), cost(STAGED, staged_seconds)]
}

struct Setup {
    manager: CrossBackendTransferManager,
    backend: Arc<MockBackend>,
}

fn setup(builder: ManagerBuilder, mock: Mock) -> Setup {
    let (manager, backend) = (builder.build(), mock.build());
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let setup = Setup { manager, backend };
    setup.link_takes(10);
    setup
}

/// Everything is measured, and nothing explores.
fn measured() -> ManagerBuilder {
    CrossBackendTransferManager::builder().sampling(Sampling::Every(1)).exploration(false)
}

fn mock() -> Mock {
    Mock { costs: costs(15), ..Mock::default() }
}

impl Setup {
    /// Sets what the driver's copies take from now on.
    fn link_takes(&self, seconds: u64) {
        self.backend.shared.planted_micros.store(seconds * 1_000_000, Ordering::SeqCst);
    }

    fn plan(&self, bytes: usize) -> Plan {
        let TransferPath { src, dst } = upload();
        self.manager.plan(src, dst, bytes as u64, &TransferOptions::new()).unwrap()
    }

    fn basis(&self, method: TransferMethod) -> CostBasis {
        let costs = self.manager.costs();
        costs.into_iter().find(|(cost, _)| cost.path == upload() && cost.method == method).unwrap().1
    }

    /// Seconds that a transfer is predicted to take.
    fn predicted(&self, method: TransferMethod, bytes: usize) -> u64 {
        let costs = self.manager.costs();
        let known = costs.iter().find(|(cost, _)| cost.path == upload() && cost.method == method);
        known.unwrap().0.model.predict(bytes as u64).as_secs_f64().round() as u64
    }

    /// Allocates the staging buffers.
    fn prepare(&self) {
        let TransferPath { src, dst } = upload();
        self.manager.prepare(src, dst, &TransferOptions::new()).unwrap();
    }

    fn copies(&self, count: usize, (src, dst): &(RawBuffer, RawBuffer)) {
        (0..count).for_each(|_| _ = self.manager.copy(src, dst).wait().unwrap());
    }
}

#[test]
fn link_that_degrades_while_running_changes_the_choice() {
    let setup = setup(measured(), mock());
    let both = pair(&setup.manager, MIB);
    setup.copies(36, &both);
    assert_eq!((setup.plan(MIB).method, setup.plan(MIB).basis), (DIRECT, CostBasis::BuiltIn), "as predicted");
    setup.link_takes(30);
    setup.copies(9, &both);
    let plan = setup.plan(MIB);
    assert_eq!((plan.method, plan.basis), (STAGED, CostBasis::BuiltIn), "{plan}");
    let direct = plan.alternatives.iter().find(|other| other.method == DIRECT).unwrap();
    assert_eq!((direct.predicted.as_secs(), direct.basis), (30, CostBasis::Refined));
    assert!(plan.to_string().contains("DirectCopy: about 30.0s (corrected by transfers)"), "{plan}");
    assert_eq!(setup.plan(4 * MIB).method, DIRECT, "nothing was seen of such sizes");
    drop(both);
    assert!(is_at_rest(&setup.manager));
}

#[test]
fn queue_behind_or_before_other_work_is_not_the_link() {
    let setup = setup(measured(), mock());
    let (both, other) = (pair(&setup.manager, MIB), pair(&setup.manager, 64 << 10));
    setup.link_takes(30);
    for turn in 0..60 {
        let copy = |(src, dst): &(RawBuffer, RawBuffer)| setup.manager.copy(src, dst).submit();
        // Before mine and over when it ends, after mine and not over yet, or after mine and over before.
        let (first, second) = if turn % 3 == 0 { (&other, &both) } else { (&both, &other) };
        let (mut first, mut second) = (copy(first), copy(second));
        if turn % 3 == 2 {
            std::mem::swap(&mut first, &mut second);
        }
        first.wait().unwrap();
        second.wait().unwrap();
    }
    assert_eq!((setup.plan(MIB).method, setup.basis(DIRECT)), (DIRECT, CostBasis::BuiltIn));
    setup.copies(9, &both);
    assert_eq!(setup.basis(DIRECT), CostBasis::Refined, "alone it counts");
}

#[test]
fn users_costs_small_copies_and_simulated_devices_teach_nothing() {
    let never = |setup: &Setup, both: &(RawBuffer, RawBuffer)| {
        setup.link_takes(30);
        setup.copies(40, both);
        setup.basis(DIRECT)
    };
    let users = setup(measured(), mock());
    users.manager.set_costs(costs(15));
    assert_eq!(never(&users, &pair(&users.manager, MIB)), CostBasis::User);
    assert_eq!(users.plan(MIB).predicted.as_secs(), 10);
    for (builder, mock, bytes) in [
        (measured().refinement(false), mock(), MIB),
        (measured().sampling(Sampling::Off), mock(), MIB),
        (measured(), Mock { simulated: true, ..mock() }, MIB),
        (measured(), mock(), 60 << 10),
    ] {
        let setup = setup(builder, mock);
        assert_eq!(never(&setup, &pair(&setup.manager, bytes)), CostBasis::BuiltIn, "{bytes}");
    }
}

#[test]
fn copies_in_place_by_threads_of_the_host_count_if_alone() {
    let unified = Place::new(MOCK, MemoryKind::Unified);
    let path = TransferPath::new(upload().src, unified);
    let (method, model) = (TransferMethod::ZeroCopy, CostModel::linear(Duration::from_secs(10), 1e15));
    let costs = vec![PathCost { path, method, model }];
    let setup = setup(measured(), Mock { in_place: Some(DeviceId::Cpu), costs, ..Mock::default() });
    setup.link_takes(30);
    let new = || (pair(&setup.manager, MIB).0, setup.manager.allocate(MOCK, unified.kind, MIB).unwrap());
    let copy = |(src, dst): &(RawBuffer, RawBuffer)| setup.manager.copy(src, dst).method(method).submit();
    let basis = || setup.manager.costs().into_iter().find(|(cost, _)| cost.path == path).unwrap().1;
    let (one, other) = (new(), new());
    for _ in 0..20 {
        let (first, second) = (copy(&one), copy(&other));
        first.wait().unwrap();
        second.wait().unwrap();
    }
    assert_eq!(basis(), CostBasis::BuiltIn, "beside another one");
    (0..9).for_each(|_| assert_eq!(copy(&one).wait().unwrap().lane, DeviceId::Cpu));
    assert_eq!(basis(), CostBasis::Refined);
}

#[test]
fn calibration_replaces_what_transfers_taught() {
    let setup = setup(measured(), mock());
    setup.link_takes(30);
    setup.copies(9, &pair(&setup.manager, MIB));
    assert_eq!(setup.basis(DIRECT), CostBasis::Refined);
    // On a busy machine the default budget may not suffice.
    let options = transload_transfer::CalibrationOptions::new().largest(1024).budget(Duration::from_secs(60));
    let found = setup.manager.calibrate(&options).unwrap();
    assert_eq!((found.unfinished.len(), setup.basis(DIRECT)), (0, CostBasis::Measured));
}

#[test]
fn cost_of_nothing_is_not_corrected() {
    let free =
        PathCost { path: upload(), method: DIRECT, model: CostModel::linear(Duration::ZERO, f64::MAX) };
    let setup = setup(measured(), Mock { costs: vec![free], ..Mock::default() });
    setup.copies(20, &pair(&setup.manager, MIB));
    assert_eq!(setup.basis(DIRECT), CostBasis::BuiltIn);
}

/// Default sampling, so that exploring transfers are measured for that alone.
fn exploring() -> ManagerBuilder {
    CrossBackendTransferManager::builder()
}

fn explored(setup: &Setup, count: usize, bytes: usize, options: TransferOptions) -> Vec<TransferReport> {
    let (src, dst) = pair(&setup.manager, bytes);
    let copy = |_| {
        let mut copy = setup.manager.copy(&src, &dst).options(options);
        if options == TransferOptions::new() {
            copy = copy.priority(StreamPriority::Low);
        }
        copy.wait().unwrap()
    };
    (0..count).map(copy).collect()
}

#[test]
fn second_best_is_tried_for_one_percent_of_the_time() {
    let setup = setup(exploring(), Mock { costs: costs(14), ..Mock::default() });
    setup.prepare();
    let reports = explored(&setup, 500, MIB, TransferOptions::new());
    let seconds = |of: &dyn Fn(&&TransferReport) -> bool| -> f64 {
        reports.iter().filter(of).map(|report| report.predicted.as_secs_f64()).sum()
    };
    let (all, some) = (seconds(&|_| true), seconds(&|report| report.explored));
    assert!(some > 0.0 && some <= 0.01 * all, "{some} of {all} s");
    assert_eq!(reports.iter().filter(|report| report.explored).count(), 3, "each takes 14 of 5,000 s");
    for report in &reports {
        assert_eq!(report.method, if report.explored { STAGED } else { DIRECT }, "{report}");
        assert!(!report.explored || report.moving.is_some(), "{report}");
        assert_eq!(report.to_string().contains("second best"), report.explored, "{report}");
    }
    assert!(!setup.plan(MIB).explored && is_at_rest(&setup.manager));
}

#[test]
fn nothing_is_tried_where_it_could_hurt_or_teach_nothing() {
    let low = TransferOptions::new().priority(StreamPriority::Low);
    let off = exploring().sampling(Sampling::Off);
    for (builder, staged, bytes, options) in [
        (exploring(), 14, MIB, low.priority(StreamPriority::High)),
        (exploring(), 14, MIB, low.forbid(STAGED)),
        (exploring(), 14, MIB, low.only(DIRECT)),
        (exploring(), 14, MIB, low.timing(Timing::Off)),
        (exploring(), 14, MIB - 1, low),
        (exploring(), 16, MIB, low),
        (exploring().exploration(false), 14, MIB, low),
        (exploring().refinement(false), 14, MIB, low),
        (off, 14, MIB, low),
    ] {
        let setup = setup(builder, Mock { costs: costs(staged), ..Mock::default() });
        setup.prepare();
        let reports = explored(&setup, 200, bytes, options);
        assert!(reports.iter().all(|report| report.method == DIRECT && !report.explored), "{options:?}");
    }
    let users = setup(exploring(), mock());
    users.prepare();
    users.manager.set_costs(costs(14));
    assert!(explored(&users, 200, MIB, low).iter().all(|report| !report.explored));
    // Beside another copy, nothing can be learned.
    let busy = setup(exploring(), Mock { costs: costs(14), ..Mock::default() });
    busy.prepare();
    let (src, dst) = pair(&busy.manager, MIB);
    let other = busy.manager.copy(&src, &dst).submit();
    assert!(explored(&busy, 300, MIB, low).iter().all(|report| !report.explored));
    other.wait().unwrap();
    assert!(explored(&busy, 1, MIB, low)[0].explored, "it is time");
}

#[test]
fn method_without_its_memory_is_not_tried() {
    let setup = setup(exploring(), Mock { costs: costs(14), ..Mock::default() });
    let low = TransferOptions::new().priority(StreamPriority::Low);
    assert!(explored(&setup, 200, MIB, low).iter().all(|report| !report.explored));
    assert_eq!(setup.manager.staging_bytes(), 0);
    setup.prepare();
    assert!(explored(&setup, 1, MIB, low)[0].explored);
}

#[test]
fn failure_of_a_tried_method_is_not_that_of_the_transfer() {
    let low = TransferOptions::new().priority(StreamPriority::Low);
    let new = || {
        let setup = setup(exploring(), Mock { costs: costs(9), ..Mock::default() });
        setup.prepare();
        setup
    };
    let first = explored(&new(), 200, MIB, low).iter().position(|report| report.explored).unwrap();
    for kind in [ErrorKind::Io, ErrorKind::Unsupported] {
        let setup = new();
        explored(&setup, first, MIB, low);
        setup.backend.refuse_next(kind);
        let report = &explored(&setup, 1, MIB, low)[0];
        assert_eq!((report.method, report.explored), (STAGED, false), "{kind:?}");
        assert!(setup.backend.shared.refusals.lock().is_empty(), "{kind:?}");
        let next = explored(&setup, first / 2, MIB, low);
        assert!(next.iter().all(|report| !report.explored), "it counts as a try: {kind:?}");
        assert!(is_at_rest(&setup.manager));
    }
}

#[test]
fn wrong_correction_of_a_method_is_corrected_again() {
    for bytes in [64 << 10, 200 << 10] {
        // Only what explores is measured: what staging takes here is no planted time.
        let setup = setup(exploring().sampling(Sampling::Every(u32::MAX)), mock());
        setup.prepare();
        let both = pair(&setup.manager, bytes);
        setup.link_takes(30);
        let measured = |_| _ = setup.manager.copy(&both.0, &both.1).timing(Timing::Measured).wait().unwrap();
        (0..9).for_each(measured);
        assert_eq!((setup.predicted(DIRECT, bytes), setup.plan(bytes).method), (30, STAGED));
        // Of a stranger's work, which is over.
        setup.link_takes(10);
        let heals = |_| {
            setup.copies(100, &both);
            setup.predicted(DIRECT, bytes) == 10
        };
        assert!((0..40).any(heals), "{bytes}: {} s", setup.predicted(DIRECT, bytes));
    }
}

#[test]
fn waited_for_tries_of_the_shortest_uploads_count_and_teach() {
    const BYTES: usize = 64 << 10;
    let setup = setup(exploring().sampling(Sampling::Every(u32::MAX)), mock());
    setup.prepare();
    setup.link_takes(12);
    let (src, dst) = pair(&setup.manager, BYTES);
    (0..9).for_each(|_| _ = setup.manager.copy(&src, &dst).timing(Timing::Measured).wait().unwrap());
    assert_eq!((setup.predicted(DIRECT, BYTES), setup.plan(BYTES).method), (12, DIRECT));
    let (mut copies, mut tries) = (0, 0);
    while setup.basis(STAGED) == CostBasis::BuiltIn && copies < 10_000 {
        copies += 1;
        tries += usize::from(setup.manager.copy(&src, &dst).wait().unwrap().explored);
    }
    // Each is predicted to take 15 s, and the others 12 s.
    assert!(tries >= 9 && copies > tries * 120, "{tries} tries in {copies} copies");
    assert_eq!((setup.basis(STAGED), setup.plan(BYTES).method), (CostBasis::Refined, STAGED));
}

/// Corrects the driver's copies upward a hundred times, without any other measurement.
fn disturbed() -> Setup {
    let setup = setup(exploring().sampling(Sampling::Every(u32::MAX)), mock());
    setup.prepare();
    setup.link_takes(1000);
    let (src, dst) = pair(&setup.manager, MIB);
    (0..9).for_each(|_| _ = setup.manager.copy(&src, &dst).timing(Timing::Measured).wait().unwrap());
    assert_eq!((setup.predicted(DIRECT, MIB), setup.plan(MIB).method), (1000, STAGED));
    setup
}

#[test]
fn large_correction_by_what_is_over_does_not_last() {
    let setup = disturbed();
    setup.link_takes(10);
    // 1 % of the time of 600 is that of nine tries as they were before, and are again.
    setup.copies(700, &pair(&setup.manager, MIB));
    assert_eq!((setup.predicted(DIRECT, MIB), setup.plan(MIB).method), (10, DIRECT));
}

#[test]
fn large_correction_that_holds_is_tried_ever_more_seldom() {
    let setup = disturbed();
    let reports = explored(&setup, 1000, MIB, TransferOptions::new());
    let tries: Vec<i32> = (1..).zip(&reports).filter(|(_, report)| report.explored).map(|it| it.0).collect();
    // They count as 10, 20, 40 and 80 s, of 15 s for each transfer and 1000 s for each try.
    assert_eq!(tries.len(), 4, "{tries:?}");
    let gaps: Vec<i32> = tries.iter().zip(&tries[1..]).map(|(one, next)| next - one).collect();
    assert!(gaps[1] > 2 * gaps[0] && gaps[2] > 2 * gaps[1], "{gaps:?}");
}
