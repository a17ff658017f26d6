//! Default costs. Not measured: they order the methods as they are on a discrete GPU, until calibration measures them.

use std::time::Duration;

use transload_core::{CostModel, DeviceId, MemoryKind, PathCost, Place, TransferMethod, TransferPath};

use super::state::{DeviceState, HOST_KINDS};
use crate::api::ApiDevice;

/// Returns the default costs of one device's paths.
pub(crate) fn of(state: &DeviceState) -> Vec<PathCost> {
    let cost = |src, dst, method, micros: u64, gigabytes: f64| PathCost {
        path: TransferPath::new(src, dst),
        method,
        model: CostModel::linear(Duration::from_micros(micros), gigabytes * 1e9),
    };
    let here = Place::new(state.id(), MemoryKind::Device);
    let mut costs = vec![cost(here, here, TransferMethod::DirectCopy, 10, 200.0)];
    #[cfg(feature = "cuda")]
    if let Some(between) = state.between.get() {
        for (src, dst) in [(between.place(), here), (here, between.place())] {
            costs.push(cost(src, dst, TransferMethod::DirectCopy, 60, 400.0));
        }
    }
    for kind in HOST_KINDS.into_iter().filter(|_| state.info.kinds.contains(&MemoryKind::Pinned)) {
        let host = Place::new(DeviceId::Cpu, kind);
        for (src, dst) in [(host, here), (here, host)] {
            if kind == MemoryKind::Pageable {
                // One thread copies to and from staging memory; HostStaged has several.
                costs.push(cost(src, dst, TransferMethod::DirectCopy, 15, 6.0));
                costs.push(cost(src, dst, TransferMethod::HostStaged, 30, 20.0));
            } else {
                costs.push(cost(src, dst, TransferMethod::DirectCopy, 10, 20.0));
            }
            if state.is_mapped_between(src, dst) {
                // As within the host, which the other methods have to do, too.
                costs.push(cost(src, dst, TransferMethod::ZeroCopy, 1, 40.0));
            }
        }
    }
    costs
}
