//! Rows of files in memory (`/dev/shm`) to one and to two devices, and of downloads into host memory that was never touched, next to
//! threads with two pinned slots each, written by hand; and of pinning a large pool. For fewer processors: `taskset -c 0-3 transload-bench --only load`.

mod files;
mod fresh;
mod pool;
mod threads;

use std::thread;

use anyhow::{Result, ensure};
use transload::{Runtime, cuda::CudaBackendConfig};

use crate::{
    comparison::{Fixture, Parts},
    cuda,
};

/// Every part, in order.
pub(crate) const PARTS: Parts = (
    "load",
    &[
        ("one device", files::one),
        ("two devices", files::two),
        ("fresh memory", fresh::rows),
        ("pinned pool", pool::rows),
    ],
);

fn runtime(fixture: &Fixture<'_>) -> Result<Runtime> {
    let ordinals = cuda::pair(fixture.device.ordinal())?;
    let config = CudaBackendConfig::default().with_devices(ordinals);
    let builder = Runtime::builder().cuda(config);
    Ok(builder.calibration(transload::calibration::CalibrationStore::None).discover()?)
}

/// Fails if anything is still allocated.
fn finish(runtime: &Runtime) -> Result<()> {
    runtime.drain()?;
    let resources = runtime.resources();
    ensure!(resources.is_empty(), "still allocated: {resources}");
    Ok(())
}

/// Threads and bytes of a slot that are best by hand on so many processors.
fn by_hand() -> (usize, usize) {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(16);
    (threads, if threads >= 12 { 4 << 20 } else { 2 << 20 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver(PARTS);
    }
}
