//! The fastest predicted method is chosen, and an urgent transfer bypasses a copy engine's queue.

use std::{future::IntoFuture, time::Duration};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    CostBasis, CostModel, DeviceId, MemoryKind, PathCost, Place, RejectReason, Rejected, StreamPriority,
    TransferMethod, TransferPath,
};
use transload_transfer::{CrossBackendTransferManager, Plan, TransferOptions};

use crate::{MOCK, Mock, is_at_rest, with};

const DIRECT: TransferMethod = TransferMethod::DirectCopy;
const STAGED: TransferMethod = TransferMethod::HostStaged;
const ZERO: TransferMethod = TransferMethod::ZeroCopy;

fn upload(kind: MemoryKind) -> TransferPath {
    TransferPath::new(Place::new(DeviceId::Cpu, kind), Place::new(MOCK, MemoryKind::Device))
}

fn manager(path: TransferPath, costs: &[(TransferMethod, CostModel)]) -> CrossBackendTransferManager {
    let (manager, _) = with(Mock { in_place: Some(MOCK), ..Mock::default() });
    let cost = |(method, model): &(_, CostModel)| PathCost { path, method: *method, model: model.clone() };
    manager.set_costs(costs.iter().map(cost).collect());
    manager
}

/// Of staging and a direct copy, which take equally long at 3 MB: the break point is within a size class.
fn crossing(bytes: u64, options: TransferOptions) -> Plan {
    let path = upload(MemoryKind::Pageable);
    let micros = Duration::from_micros;
    let costs =
        [(DIRECT, CostModel::linear(micros(10), 1e9)), (STAGED, CostModel::linear(micros(1510), 2e9))];
    manager(path, &costs).plan(path.src, path.dst, bytes, &options).unwrap()
}

#[test]
fn cheapest_method_is_chosen_around_break_point() {
    for (bytes, method) in [(1, DIRECT), (2_999_000, DIRECT), (3_001_000, STAGED), (1 << 34, STAGED)] {
        let plan = crossing(bytes, TransferOptions::new());
        assert_eq!((plan.method, plan.basis), (method, CostBasis::User));
        assert!(plan.alternatives.iter().all(|other| other.predicted >= plan.predicted), "{plan}");
        assert!(plan.alternatives.iter().any(|other| [DIRECT, STAGED].contains(&other.method)), "{plan}");
    }
}

#[test]
fn forbidden_method_is_replaced_by_next_best() {
    let plan = crossing(5 << 20, TransferOptions::new().forbid(STAGED));
    assert_eq!((plan.method, plan.chunks), (DIRECT, 1));
    let told: Vec<_> = plan.rejected.iter().map(|rejected| rejected.method).collect();
    assert!(told.is_sorted() && told.contains(&STAGED), "{plan}");
    let forbidden = Rejected { method: STAGED, reason: RejectReason::Forbidden };
    assert!(plan.rejected.contains(&forbidden), "{plan}");
    // Pinned to one that is not the cheapest.
    assert_eq!(crossing(1, TransferOptions::new().only(STAGED)).method, STAGED);
}

#[test]
fn equal_costs_choose_first_and_unknown_cost_last() {
    let path = upload(MemoryKind::Pageable);
    let same = CostModel::linear(Duration::from_micros(5), 1e9);
    let both = [(DIRECT, same.clone()), (STAGED, same)];
    for (costs, method) in [(&both[..], DIRECT), (&both[1..], STAGED)] {
        let plan = manager(path, costs).plan(path.src, path.dst, 4096, &TransferOptions::new()).unwrap();
        assert_eq!(plan.method, method);
    }
}

#[test]
fn plan_display_uses_plural_for_counts() {
    let (staged, direct) = (crossing(64 << 20, TransferOptions::new()), crossing(64, TransferOptions::new()));
    assert!(staged.to_string().contains(&format!(", 1 lane, {} chunks: about", staged.chunks)), "{staged}");
    assert!(staged.chunks > 1 && !direct.to_string().contains("chunk"), "{direct}");
}

fn by_engine_or_kernel() -> [(TransferMethod, CostModel); 2] {
    let micros = Duration::from_micros;
    [(DIRECT, CostModel::linear(micros(8), 55e9)), (ZERO, CostModel::linear(micros(12), 51e9))]
}

#[test]
fn urgent_small_transfer_bypasses_long_engine_queue() {
    let (path, costs) = (upload(MemoryKind::Mapped), by_engine_or_kernel());
    let manager = manager(path, &costs);
    let high = TransferOptions::new().priority(StreamPriority::High);
    let limit = TransferOptions::SMALL;
    let asked = [
        (1, high),
        (limit, high),
        (limit + 1, high),
        (1, TransferOptions::new()),
        (1, high.forbid(ZERO)),
        (1, high.only(DIRECT)),
    ];
    let check = |expected: [TransferMethod; 6], queued: u64| {
        for ((bytes, options), method) in asked.into_iter().zip(expected) {
            let plan = manager.plan(path.src, path.dst, bytes, &options).unwrap();
            assert_eq!(plan.method, method, "{bytes} {options:?}");
            let (_, model) = costs.iter().find(|(of, _)| *of == method).unwrap();
            assert_eq!(plan.predicted, model.predict(bytes), "the prediction is the method's own");
            let is_urgent = bytes <= limit && options != TransferOptions::new();
            assert_eq!(plan.queued, if is_urgent { queued } else { 0 }, "{bytes} {options:?}");
        }
    };
    let src = manager.allocate_for(MOCK, MemoryKind::Mapped, 4 << 20).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 4 << 20).unwrap();
    // The mock's copies run when waited for.
    let queue = |bytes| manager.transfer_buffer(&src, &dst, 0, 0, bytes);
    check([DIRECT; 6], 0);
    // 64 KiB take 9 µs: longer than no kernel.
    let first = queue(64 << 10);
    check([DIRECT; 6], 64 << 10);
    // 1 MiB takes 27 µs: longer than a kernel for 1 byte, not than one for 1 MiB.
    let second = queue(15 * (64 << 10));
    check([ZERO, DIRECT, DIRECT, DIRECT, DIRECT, DIRECT], 1 << 20);
    let third = queue(4 << 20);
    check([ZERO, ZERO, DIRECT, DIRECT, DIRECT, DIRECT], 5 << 20);
    for transfer in [first, second, third] {
        transfer.wait().unwrap();
    }
    check([DIRECT; 6], 0);
}

#[test]
fn urgent_transfer_of_unmapped_memory_uses_engine() {
    let path = upload(MemoryKind::Pinned);
    let manager = manager(path, &by_engine_or_kernel());
    let src = manager.allocate_for(MOCK, MemoryKind::Pinned, 4 << 20).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 4 << 20).unwrap();
    assert_eq!(src.device_address(), None);
    let queued = manager.copy(&src, &dst).submit();
    let high = TransferOptions::new().priority(StreamPriority::High);
    assert_eq!(manager.plan(path.src, path.dst, 1, &high).unwrap().method, ZERO);
    let report =
        manager.copy(&src.slice(..1).unwrap(), &dst.slice(..1).unwrap()).options(high).wait().unwrap();
    let unseen = Rejected { method: ZERO, reason: RejectReason::NotMapped };
    assert_eq!((report.method, report.queued), (DIRECT, 4 << 20));
    assert!(report.rejected.contains(&unseen), "{report:?}");
    queued.wait().unwrap();
}

/// As if a framework had made it, unlike other memory of the device.
#[test]
fn memory_that_the_host_cannot_address_goes_by_next_best() {
    let path = upload(MemoryKind::Pageable);
    let devices = vec![(MOCK, vec![MemoryKind::Device])];
    let (manager, backend) = with(Mock { devices, in_place: Some(DeviceId::Cpu), ..Mock::default() });
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let [fast, slow] = [1, 9].map(|micros| CostModel::linear(Duration::from_micros(micros), 1e9));
    manager.set_costs(
        [(ZERO, fast), (DIRECT, slow)].map(|(method, model)| PathCost { path, method, model }).into(),
    );
    let plan = manager.plan(path.src, path.dst, 100, &TransferOptions::new()).unwrap();
    assert_eq!((plan.method, plan.lane), (ZERO, DeviceId::Cpu));
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 100).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 100).unwrap();
    let unmapped = Rejected { method: ZERO, reason: RejectReason::NotMapped };
    let plan = manager.copy(&src, &dst).plan().unwrap();
    assert!(plan.method == DIRECT && plan.rejected.contains(&unmapped), "{plan}");
    for report in
        [manager.copy(&src, &dst).wait(), pollster::block_on(manager.copy(&src, &dst).into_future())]
    {
        let report = report.unwrap();
        assert_eq!((report.method, report.lane), (DIRECT, MOCK));
        assert!(report.rejected.contains(&unmapped), "{report:?}");
    }
    let only = manager.copy(&src, &dst).method(ZERO).wait().unwrap_err();
    assert!(only.to_string().contains(&RejectReason::NotMapped.to_string()), "{only}");
    drop((src, dst, backend));
    assert!(is_at_rest(&manager));
}
