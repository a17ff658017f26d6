//! Rows of files in memory (`/dev/shm`) to one and to two devices, and of downloads into host memory that was never touched, next to
//! threads with two pinned slots each, written by hand; of pinning a large pool; and of the same
//! array uploaded repeatedly. For fewer processors: `taskset -c 0-3 transload-bench --only load`.

mod files;
mod fresh;
mod pool;
mod repeated;
mod threads;

use std::thread;

use anyhow::{Result, ensure};
use transload::{Runtime, RuntimeBuilder, cuda::CudaBackendConfig};

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
        ("repeated", repeated::rows),
    ],
);

fn runtime(fixture: &Fixture<'_>) -> Result<Runtime> {
    Ok(builder(fixture)?.discover()?)
}

fn builder(fixture: &Fixture<'_>) -> Result<RuntimeBuilder> {
    let ordinals = cuda::pair(fixture.device.ordinal())?;
    let config = CudaBackendConfig::default().with_devices(ordinals);
    Ok(Runtime::builder().cuda(config).calibration(transload::calibration::CalibrationStore::None))
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
