//! Default costs, and how transfers are staged. Costs are not measured but for copies between CUDA and the device: they order the methods as they are on a discrete GPU, until calibration measures them.

use std::time::Duration;

use transload_core::{
    CostModel, DeviceId, MemoryKind, PathCost, Place, StagingHints, TransferMethod, TransferPath,
};

use super::{
    pieces::LONGEST,
    state::{DeviceState, HOST_KINDS},
};
use crate::api::ApiDevice;

/// Most bytes that a queue which only copies takes of a copy between CUDA's memory and the device's: by wgpu's the GPU changes between both
/// APIs, for 0.3 ms, but copies faster (H200, driver 580: 4 KiB in 32 µs by the one and 340 by the other, 256 MiB at 84 and, by a shader,
/// at 428 GB/s).
#[cfg(feature = "cuda")]
pub(crate) const BY_COPIER: usize = 32 << 20;

/// Microseconds of copies between CUDA's memory and the device's, either way, on that H200 (PCIe 5 x16, 16 processors, 2026-11-28;
/// 256 MiB 2026-11-30, since when a shader copies, and 64 MiB was not measured).
#[cfg(feature = "cuda")]
const BETWEEN: [(u64, u64); 6] =
    [(4 << 10, 33), (1 << 20, 49), (16 << 20, 230), (32 << 20, 410), (64 << 20, 530), (256 << 20, 630)];
/// The same by way of the host.
#[cfg(feature = "cuda")]
const STAGED_FROM_CUDA: [(u64, u64); 6] = [
    (4 << 10, 15),
    (1 << 20, 205),
    (16 << 20, 1_200),
    (32 << 20, 2_100),
    (64 << 20, 3_900),
    (256 << 20, 14_900),
];
#[cfg(feature = "cuda")]
const STAGED_TO_CUDA: [(u64, u64); 6] = [
    (4 << 10, 35),
    (1 << 20, 220),
    (16 << 20, 2_000),
    (32 << 20, 4_900),
    (64 << 20, 10_600),
    (256 << 20, 45_000),
];

/// Bytes of one submission of a staged transfer. Between two the device copies nothing for 10 to 15 µs: 256 MiB go up with 50 GB/s in one,
/// with 43 in submissions of 4 MiB, with 30 in such of 1 MiB (an H200, by hand).
const UPLOAD_SEGMENT: u64 = 4 << 20;
const DOWNLOAD_SEGMENT: u64 = 2 << 20;

/// Bytes from which an upload goes through the processor's caches: up to this many the longer submissions gain as much (H200: 192 MiB go up
/// at 44 GB/s either way, 1 GiB at 46 to 49 instead of 39).
const UPLOAD_CACHED_FROM: u64 = 256 << 20;

/// Returns how transfers between the host and a device are divided.
pub(crate) fn staging_hints(state: &DeviceState) -> StagingHints {
    let mut hints = StagingHints::default();
    hints.queues = state.copiers();
    if state.queue.vulkan.has_piece_shader() {
        hints.computed_piece = LONGEST as usize;
    }
    (hints.upload_segment, hints.download_segment) = (Some(UPLOAD_SEGMENT), Some(DOWNLOAD_SEGMENT));
    hints.upload_cached_from = Some(UPLOAD_CACHED_FROM);
    hints
}

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
        let sides = [(between.place(), here, STAGED_FROM_CUDA), (here, between.place(), STAGED_TO_CUDA)];
        for (src, dst, staged) in sides {
            for (method, micros) in
                [(TransferMethod::DirectCopy, BETWEEN), (TransferMethod::HostStaged, staged)]
            {
                let points = micros.map(|(bytes, micros)| (bytes, Duration::from_micros(micros)));
                let path = TransferPath::new(src, dst);
                costs.extend(CostModel::through(&points).map(|model| PathCost { path, method, model }));
            }
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
