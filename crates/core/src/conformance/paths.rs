//! Promises about which device copies a path, and at what cost.

use std::time::Duration;

use super::{
    CheckResult, Verdict,
    context::{self, TestContext},
};
use crate::{DeviceId, MemoryKind, Place, StreamPriority, TransferMethod, WorkloadType};

pub(super) fn copier(context: &TestContext<'_>) -> CheckResult {
    let own = context.queue()?;
    let devices: Vec<DeviceId> = context.backend().devices().into_iter().map(|info| info.id).collect();
    ensure!(!context.paths().is_empty(), "no path at all has {} as its copier", context.subject.device);
    for src in &context.memories {
        for dst in &context.memories {
            let path = format!("{} → {}", src.place, dst.place);
            let Some(copier) = context.backend().copier(src.place, dst.place) else {
                let can = own.can_copy(src.place, dst.place);
                ensure!(!can, "{path} has no copier, but a queue of {} can copy it", context.subject.device);
                continue;
            };
            ensure!(devices.contains(&copier), "the copier of {path} is {copier}, which is not listed");
            let queue =
                context.backend().lease_queue(copier, StreamPriority::Normal, WorkloadType::Memory)?;
            ensure!(queue.device() == copier, "a queue of {copier} says it is of {}", queue.device());
            ensure!(
                queue.can_copy(src.place, dst.place),
                "the copier of {path} is {copier}; its queue cannot"
            );
        }
    }
    let nowhere = Place::new(DeviceId::Other("conformance: no such family", 0), MemoryKind::Device);
    for memory in &context.memories {
        for (src, dst) in [(memory.place, nowhere), (nowhere, memory.place), (nowhere, nowhere)] {
            let copier = context.backend().copier(src, dst).or(context.backend().in_place_copier(src, dst));
            ensure!(copier.is_none(), "the copier of {src} → {dst} is {copier:?}");
            ensure!(!own.can_copy(src, dst), "a queue can copy {src} → {dst}");
        }
    }
    Ok(Verdict::Passed)
}

pub(super) fn costs(context: &TestContext<'_>) -> CheckResult {
    let backend = &context.subject.backend;
    let kinds = context::info(context.subject)?.kinds;
    let costs = backend.default_costs();
    for cost in &costs {
        let (src, dst) = (cost.path.src, cost.path.dst);
        let what = format!("the cost of {} by {}", cost.path, cost.method);
        let done = match cost.method {
            TransferMethod::DirectCopy => backend.copier(src, dst).is_some(),
            TransferMethod::ZeroCopy => {
                backend.in_place_copier(src, dst).is_some() || backend.copier(src, dst).is_some()
            }
            // Path of several operations: at least one end is a known device's.
            _ => backend.devices().iter().any(|info| info.id == src.device || info.id == dst.device),
        };
        ensure!(done, "{what}: no device does that");
        for place in [src, dst] {
            let offered = place.device != context.subject.device
                || place.device.is_cpu()
                || kinds.contains(&place.kind);
            ensure!(offered, "{what}: {} has no {} memory", place.device, place.kind);
        }
        let [small, large] = [1, 1 << 30].map(|bytes| cost.model.predict(bytes));
        ensure!(small > Duration::ZERO && large >= small, "{what}: 1 byte {small:?}, 1 GiB {large:?}");
    }
    Ok(Verdict::passed_if(!costs.is_empty(), "the backend has no default costs"))
}
