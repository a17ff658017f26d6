//! Promises about who copies what, at what cost.

use std::time::Duration;

use super::{
    Found, Verdict,
    lab::{self, Lab},
};
use crate::{DeviceId, MemoryKind, Place, StreamPriority, TransferMethod, WorkloadType};

pub(super) fn copier(lab: &Lab<'_>) -> Found {
    let own = lab.queue()?;
    let devices: Vec<DeviceId> = lab.backend().devices().into_iter().map(|info| info.id).collect();
    ensure!(!lab.paths().is_empty(), "no path at all has {} as its copier", lab.subject.device);
    for src in &lab.spots {
        for dst in &lab.spots {
            let path = format!("{} → {}", src.place, dst.place);
            let Some(copier) = lab.backend().copier(src.place, dst.place) else {
                let can = own.can_copy(src.place, dst.place);
                ensure!(!can, "{path} has no copier, but a queue of {} can copy it", lab.subject.device);
                continue;
            };
            ensure!(devices.contains(&copier), "the copier of {path} is {copier}, which is not listed");
            let queue = lab.backend().lease_queue(copier, StreamPriority::Normal, WorkloadType::Memory)?;
            ensure!(queue.device() == copier, "a queue of {copier} says it is of {}", queue.device());
            ensure!(
                queue.can_copy(src.place, dst.place),
                "the copier of {path} is {copier}; its queue cannot"
            );
        }
    }
    let nowhere = Place::new(DeviceId::Other("conformance: no such family", 0), MemoryKind::Device);
    for spot in &lab.spots {
        for (src, dst) in [(spot.place, nowhere), (nowhere, spot.place), (nowhere, nowhere)] {
            let copier = lab.backend().copier(src, dst).or(lab.backend().in_place_copier(src, dst));
            ensure!(copier.is_none(), "the copier of {src} → {dst} is {copier:?}");
            ensure!(!own.can_copy(src, dst), "a queue can copy {src} → {dst}");
        }
    }
    Ok(Verdict::Passed)
}

pub(super) fn costs(lab: &Lab<'_>) -> Found {
    let backend = &lab.subject.backend;
    let kinds = lab::info(lab.subject)?.kinds;
    let costs = backend.default_costs();
    for cost in &costs {
        let (src, dst) = (cost.path.src, cost.path.dst);
        let what = format!("the cost of {} by {}", cost.path, cost.method);
        let done = match cost.method {
            TransferMethod::DirectCopy => backend.copier(src, dst).is_some(),
            TransferMethod::ZeroCopy => {
                backend.in_place_copier(src, dst).is_some() || backend.copier(src, dst).is_some()
            }
            // Made of several operations: at least one end is a known device's.
            _ => backend.devices().iter().any(|info| info.id == src.device || info.id == dst.device),
        };
        ensure!(done, "{what}: no device does that");
        for place in [src, dst] {
            let offered =
                place.device != lab.subject.device || place.device.is_cpu() || kinds.contains(&place.kind);
            ensure!(offered, "{what}: {} has no {} memory", place.device, place.kind);
        }
        let [small, large] = [1, 1 << 30].map(|bytes| cost.model.predict(bytes));
        ensure!(small > Duration::ZERO && large >= small, "{what}: 1 byte {small:?}, 1 GiB {large:?}");
    }
    Ok(Verdict::passed_if(!costs.is_empty(), "the backend has no default costs"))
}
