//! The choice of methods, and the reasons against others. CUDA paths stand for those of any device.

use std::time::Duration;

use transload_core::{
    CostBasis, CostModel, DeviceId, ErrorKind, MemoryKind, PathCost, Place, RejectReason, Rejected,
    TransferMethod, TransferPath,
};
use transload_transfer::{Plan, StridedLayout, TransferOptions};

use crate::{MOCK, Mock, pair, with};

const HOST: Place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);

fn on(ordinal: u32, kind: MemoryKind) -> Place {
    Place::new(DeviceId::Cuda(ordinal), kind)
}

fn machine(peers: bool) -> Mock {
    let device = |ordinal| (DeviceId::Cuda(ordinal), vec![MemoryKind::Device, MemoryKind::Unified]);
    Mock {
        devices: vec![(DeviceId::Cpu, vec![MemoryKind::Pageable, MemoryKind::Mapped]), device(0), device(1)],
        peers,
        ..Mock::default()
    }
}

fn reasons(plan: &Plan) -> Vec<(TransferMethod, RejectReason)> {
    plan.rejected.iter().map(|rejected| (rejected.method, rejected.reason)).collect()
}

#[test]
fn every_rejected_method_has_a_reason() {
    use RejectReason::*;
    use TransferMethod::*;
    let cases = [
        (false, HOST, HOST, [NoDevice, NotUnified, NoDevice, NoDevice]),
        (false, HOST, on(0, MemoryKind::Device), [NoStagingMemory, NotUnified, HostSide, NotMapped]),
        (true, on(0, MemoryKind::Device), HOST, [NoStagingMemory, NotUnified, HostSide, NotMapped]),
        (
            false,
            Place::new(DeviceId::Cpu, MemoryKind::Mapped),
            on(0, MemoryKind::Device),
            [AlreadyPinned, NotUnified, HostSide, NotMapped],
        ),
        (
            false,
            on(0, MemoryKind::Device),
            on(0, MemoryKind::Device),
            [SameDevice, NotUnified, SameDevice, SameDevice],
        ),
        (
            false,
            on(0, MemoryKind::Unified),
            on(0, MemoryKind::Device),
            [SameDevice, NoConcurrentAccess, SameDevice, SameDevice],
        ),
        (
            true,
            on(0, MemoryKind::Device),
            on(1, MemoryKind::Unified),
            [NoStagingMemory, NoQueue, NotDeviceMemory, NotMapped],
        ),
        (
            false,
            on(0, MemoryKind::Device),
            on(1, MemoryKind::Device),
            [NoStagingMemory, NotUnified, NoPeerAccess, NotMapped],
        ),
    ];
    for (peers, src, dst, expected) in cases {
        let mut machine = machine(peers);
        if !src.device.is_cpu() && !dst.device.is_cpu() {
            // The host's pageable memory would do.
            machine.devices.remove(0);
        }
        let (manager, _) = with(machine);
        let plan = manager.plan(src, dst, 4096, &TransferOptions::new()).unwrap();
        assert_eq!(plan.method, DirectCopy);
        let methods = [HostStaged, UnifiedMemory, PeerToPeer, ZeroCopy];
        assert_eq!(reasons(&plan), methods.into_iter().zip(expected).collect::<Vec<_>>(), "{plan}");
    }
}

/// Rows between peers whose memory grants no access, while the queue that would copy directly is short of memory.
#[test]
fn methods_that_declined_are_not_tried_again() {
    let mut machine = machine(true);
    machine.devices.iter_mut().for_each(|(_, kinds)| kinds.push(MemoryKind::Pinned));
    let (manager, backend) = with(Mock { enables_peers: true, ..machine });
    let path = TransferPath::new(on(0, MemoryKind::Device), on(1, MemoryKind::Device));
    let by = [TransferMethod::PeerToPeer, TransferMethod::DirectCopy, TransferMethod::HostStaged];
    let costs = by.into_iter().zip(1..).map(|(method, cost)| PathCost {
        path,
        method,
        model: CostModel::linear(Duration::from_nanos(cost), 1e15),
    });
    manager.set_costs(costs.collect());
    let [src, dst] = [path.src, path.dst].map(|at| manager.allocate(at.device, at.kind, 4096).unwrap());
    let rows = StridedLayout::new(64).repeat(4, 1000);
    let copy = manager.copy_strided((&src, &rows), (&dst, &rows)).unwrap();
    [ErrorKind::Unsupported, ErrorKind::OutOfMemory].into_iter().for_each(|kind| backend.refuse_next(kind));
    assert_eq!(copy.wait().unwrap().method, TransferMethod::HostStaged);
    drop((src, dst));
    manager.drain().unwrap();
}

#[test]
fn peer_enable_failure_falls_back_with_reason() {
    let (manager, backend) = with(machine(true));
    let (src, dst) = (on(0, MemoryKind::Device), on(1, MemoryKind::Device));
    manager.set_costs(vec![PathCost {
        path: TransferPath::new(src, dst),
        method: TransferMethod::PeerToPeer,
        model: CostModel::linear(Duration::from_nanos(1), 1e15),
    }]);
    let plan = || manager.plan(src, dst, 64, &TransferOptions::new()).unwrap();
    assert_eq!(plan().method, TransferMethod::PeerToPeer);
    let allocate = |place: Place| manager.allocate(place.device, place.kind, 64).unwrap();
    let report = manager.copy(&allocate(src), &allocate(dst)).wait().unwrap();
    assert_eq!(report.method, TransferMethod::DirectCopy);
    let refused = (TransferMethod::PeerToPeer, RejectReason::NoPeerAccess);
    let told: Vec<_> = report.rejected.iter().map(|rejected| (rejected.method, rejected.reason)).collect();
    assert!(told.contains(&refused), "{report}");
    assert!(reasons(&plan()).contains(&refused) && plan().agrees_with(&report), "{}", plan());
    manager.drain().unwrap();
    assert_eq!(backend.performed(), 1, "the mock has no peer access to enable");
}

#[test]
fn only_method_not_applicable_returns_its_reason() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let plan = manager.plan(src.place(), dst.place(), 64, &TransferOptions::new()).unwrap();
    assert!(plan.rejected.len() >= 2, "{plan}");
    for rejected in &plan.rejected {
        let options = TransferOptions::new().only(rejected.method);
        let reason = rejected.to_string();
        let planned = manager.plan(src.place(), dst.place(), 64, &options).unwrap_err();
        let error = manager.copy(&src, &dst).options(options).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.to_string(), planned.to_string());
        assert!(error.to_string().contains(&reason), "`{reason}` is not in: {error}");
        // Nothing is said of the methods that were not asked for.
        let others = TransferMethod::ALL.into_iter().filter(|other| *other != rejected.method);
        assert!(others.into_iter().all(|other| !error.to_string().contains(other.name())), "{error}");
    }
    manager.drain().unwrap();
    assert_eq!(backend.performed(), 0);
}

#[test]
fn with_every_method_forbidden_the_error_lists_those_that_apply() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let none = TransferMethod::ALL.into_iter().fold(TransferOptions::new(), TransferOptions::forbid);
    let error = manager.copy(&src, &dst).options(none).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let applies = [TransferMethod::DirectCopy, TransferMethod::HostStaged];
    for method in TransferMethod::ALL {
        let text = format!("{method}: excluded by the caller");
        assert_eq!(error.to_string().contains(&text), applies.contains(&method), "{error}");
    }
}

#[test]
fn pair_without_copier_returns_reasons() {
    let (manager, _) = with(Mock { copies: |_, _| false, ..Mock::default() });
    let (src, dst) = pair(&manager, 64);
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let direct = Rejected { method: TransferMethod::DirectCopy, reason: RejectReason::NoQueue };
    assert!(error.to_string().contains(&direct.to_string()), "{error}");
}

#[test]
fn the_report_says_what_the_plan_said() {
    let (manager, _) = with(Mock { simulated: true, ..Mock::default() });
    for bytes in [1, 4096, 4097, 3 << 20] {
        let (src, dst) = pair(&manager, bytes);
        for options in [
            TransferOptions::new(),
            TransferOptions::new().only(TransferMethod::DirectCopy),
            TransferOptions::new().forbid(TransferMethod::ZeroCopy),
        ] {
            let plan = manager.plan(src.place(), dst.place(), bytes as u64, &options).unwrap();
            let report = manager.copy(&src, &dst).options(options).wait().unwrap();
            assert!(plan.agrees_with(&report), "{plan}\n{report:?}");
            assert!(report.simulated && plan.to_string().contains("simulated"));
            assert!(report.submitting <= report.elapsed);
        }
    }
}

#[test]
fn a_plan_moves_nothing_and_leases_nothing() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    manager.plan(src.place(), dst.place(), 64, &TransferOptions::new()).unwrap();
    assert!(backend.leased().is_empty() && manager.get_transfer_stats().is_empty());
}

#[test]
fn the_prediction_follows_the_costs_and_names_their_basis() {
    let path = TransferPath::new(HOST, Place::new(MOCK, MemoryKind::Device));
    let cost = |model| vec![PathCost { path, method: TransferMethod::DirectCopy, model }];
    let micros = Duration::from_micros;
    let points = [(4096, micros(5)), (1 << 20, micros(50)), (1 << 21, micros(200))];
    let mock = Mock { costs: cost(CostModel::linear(micros(7), 1e9)), ..Mock::default() };
    let (manager, _) = with(mock);
    let predicted = |bytes| {
        let plan = manager.plan(path.src, path.dst, bytes, &TransferOptions::new()).unwrap();
        (plan.predicted, plan.basis)
    };
    assert_eq!(predicted(1000), (micros(8), CostBasis::BuiltIn));
    manager.set_costs(cost(CostModel::through(&points).unwrap()));
    for (bytes, time) in points {
        assert_eq!(predicted(bytes), (time, CostBasis::User));
    }
    // A break point in the middle of a size class is kept.
    assert!(predicted((1 << 20) + (1 << 19)).0 > micros(120));
}

#[test]
fn a_path_without_a_cost_is_assumed_to_be_slow() {
    let (manager, _) = with(Mock::default());
    let plan = manager.plan(HOST, HOST, 1_000_000, &TransferOptions::new()).unwrap();
    assert_eq!((plan.predicted.as_micros(), plan.basis), (1100, CostBasis::BuiltIn));
}

#[test]
fn a_plan_reads_well() {
    let (manager, _) = with(Mock::default());
    let plan = manager.plan(HOST, HOST, 1_000_000, &TransferOptions::new()).unwrap();
    assert_eq!(
        plan.to_string(),
        "1000000 bytes cpu/pageable → cpu/pageable by DirectCopy on cpu: about 1.1ms (built-in table, not measured here)\
         \n  rejected: HostStaged: both sides are on the host\
         \n  rejected: UnifiedMemory: neither side is unified memory\
         \n  rejected: PeerToPeer: both sides are on the host\
         \n  rejected: ZeroCopy: both sides are on the host"
    );
}
