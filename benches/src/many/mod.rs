//! Rows of many pieces at once between a pool of the host and one of a device: `copy_many`, and batches by copy engines and by one copy
//! kernel, next to a loop of raw copies, the raw batch call, and a copy kernel over a list of pieces launched by hand; of pageable memory next to threads that
//! gather and scatter by hand. A model's tensors; a cache's layers, together and one by one; and pieces between two devices.

mod layers;
mod peers;
pub(crate) mod pieces;
mod raw_gather;
mod raw_list;
mod shapes;
mod state_dict;
mod unaligned;

use anyhow::Result;
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    comparison::{self, Fixture, Parts},
    row::Row,
};

/// Every part, in order.
pub(crate) const PARTS: Parts = (
    "many",
    &[
        ("up", |fixture| rows_of(fixture, shapes::rows, &SHAPES, true)),
        ("down", |fixture| rows_of(fixture, shapes::rows, &SHAPES, false)),
        ("pageable-up", |fixture| rows_of(fixture, shapes::pageable_rows, &PAGEABLE, true)),
        ("pageable-down", |fixture| rows_of(fixture, shapes::pageable_rows, &PAGEABLE, false)),
        ("state dict", state_dict::rows),
        ("unaligned", unaligned::rows),
        ("layers", layers::rows),
        ("peers", peers::rows),
    ],
);

/// Number and length in bytes of the pieces, and the goals in ms for `copy_many` up and down on a device without other work.
type Shape = (usize, usize, [Option<f64>; 2]);

const SHAPES: [Shape; 5] = [
    (1_000, 4 << 10, [Some(0.13), None]),
    (10_000, 4 << 10, [Some(1.1), None]),
    // 50 GB/s.
    (4_096, 32 << 10, [Some(2.684), Some(2.684)]),
    (1_000, 64 << 10, [None, None]),
    (300, 1 << 20, [None, None]),
];

const PAGEABLE: [Shape; 3] = [
    (1_000, 4 << 10, [Some(0.3), None]),
    (1_000, 64 << 10, [Some(2.0), None]),
    (300, 1 << 20, [Some(6.6), None]),
];

/// The rows of one shape.
type Rows =
    fn(&Fixture<'_>, &CrossBackendTransferManager, (usize, usize), bool, Option<f64>) -> Result<Vec<Row>>;

fn rows_of(fixture: &Fixture<'_>, of: Rows, shapes: &[Shape], up: bool) -> Result<Vec<Row>> {
    let manager = manager(fixture)?;
    let mut rows = Vec::new();
    for (count, bytes, [goal_up, goal_down]) in shapes {
        let goal = if up { goal_up } else { goal_down };
        rows.extend(of(fixture, &manager, (fixture.amount(*count), *bytes), up, *goal)?);
    }
    manager.drain()?;
    Ok(rows)
}

/// Returns one over the host and the fixture's device.
fn manager(fixture: &Fixture<'_>) -> Result<CrossBackendTransferManager> {
    manager_of(&[fixture.device.ordinal()])
}

/// Returns one over the host and devices.
fn manager_of(ordinals: &[u32]) -> Result<CrossBackendTransferManager> {
    let manager = CrossBackendTransferManager::builder().registration(false).build();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices(ordinals.iter().copied());
    manager.register_backend(CudaBackend::open(&config)?)?;
    Ok(manager)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        let rows = tested_on_the_software_driver(PARTS);
        for way in ["up", "down", "within"] {
            let id = format!("many/unaligned-{way}-");
            let is_it = |row: &&Row| row.id.starts_with(&id) && row.id.ends_with("/4093/exclusive");
            let row = rows.iter().find(is_it).unwrap();
            assert!(rows.iter().all(|row| !row.id.ends_with("-aligned")), "only what every run has");
            assert!(row.verified && row.reference.as_ref().is_some_and(|name| name.contains("aligned")));
        }
    }
}
