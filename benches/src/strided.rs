//! Rows of strided copies: columns of a matrix between the host and a device, packed on the other side, next to the driver's own copy of
//! rows.

use std::{os::raw::c_void, time::Instant};

use anyhow::{Context as _, Result};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, MemoryKind, Operation, Pitched, RawBuffer, Timing, submit};
use transload_streams::CudaStream;
use transload_transfer::{CrossBackendTransferManager, StridedLayout};

use crate::{
    comparison::{Comparison, Fixture, Parts, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::RawQueue,
    row::{Goal, Row},
};

/// Every part, in order.
pub(crate) const PARTS: Parts = (
    "strided",
    &[
        ("up", |fixture| rows_of(fixture, MemoryKind::Pinned, true)),
        ("down", |fixture| rows_of(fixture, MemoryKind::Pinned, false)),
        ("pageable-up", |fixture| rows_of(fixture, MemoryKind::Pageable, true)),
        ("pageable-down", |fixture| rows_of(fixture, MemoryKind::Pageable, false)),
    ],
);

const ROWS: usize = 4096;
const WIDTH: usize = 4 << 10;
const PITCH: usize = 4 * WIDTH;

/// Columns of a matrix, and where they are packed.
struct Columns {
    matrix: RawBuffer,
    packed: RawBuffer,
    rows: usize,
    expected: Vec<u8>,
}

impl Columns {
    fn new(
        fixture: &Fixture<'_>,
        manager: &CrossBackendTransferManager,
        kind: MemoryKind,
        up: bool,
    ) -> Result<Self> {
        let rows = fixture.amount(ROWS);
        let (from, to) = if up { (kind, MemoryKind::Device) } else { (MemoryKind::Device, kind) };
        let allocate = |kind, bytes| match kind {
            MemoryKind::Pageable => manager.allocate(DeviceId::Cpu, kind, bytes),
            _ => fixture.memory.allocate(kind, bytes),
        };
        let (matrix, packed) = (allocate(from, rows * PITCH)?, allocate(to, rows * WIDTH)?);
        let mut random = Content::new(rows * PITCH, 0x57 + rows as u64);
        let start = random.draw();
        let content = random.part(start, rows * PITCH);
        Memory::Ours(matrix.clone()).write(0, content)?;
        let expected = content.chunks(PITCH).flat_map(|row| row.iter().take(WIDTH)).copied().collect();
        Ok(Self { matrix, packed, rows, expected })
    }

    fn raw(&self, queue: &RawQueue, up: bool) -> Result<()> {
        let (host, device) = if up { (&self.matrix, &self.packed) } else { (&self.packed, &self.matrix) };
        let host = host.host_address().context("host memory without an address")?.as_ptr().cast::<c_void>();
        let device = device.device_address().context("device memory without an address")?;
        let rows = Pitched::new(WIDTH, self.rows, PITCH, WIDTH);
        // SAFETY: both live on, have the rows, and nothing else uses them now.
        unsafe {
            if up { queue.copy_rows_up(device, host, rows) } else { queue.copy_rows_down(host, device, rows) }
        }?;
        queue.finish()
    }
}

impl Verify for Columns {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.packed.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.packed.clone()).compare(0, &self.expected)
    }
}

fn rows_of(fixture: &Fixture<'_>, kind: MemoryKind, up: bool) -> Result<Vec<Row>> {
    let manager = CrossBackendTransferManager::builder().registration(false).build();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([fixture.device.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    let (columns, queue) = (Columns::new(fixture, &manager, kind, up)?, RawQueue::new(0)?);
    let rows = columns.rows;
    let [from, to] = [PITCH, WIDTH].map(|pitch| StridedLayout::new(WIDTH).repeat(rows, pitch));
    let strided = || {
        manager.copy_strided((&columns.matrix, &from), (&columns.packed, &to))?.wait()?;
        Ok(())
    };
    let (stream, one) = (CudaStream::new(&fixture.device)?, Pitched::new(WIDTH, rows, PITCH, WIDTH));
    let by_stream = || {
        let operation = Operation::CopyPitched { src: &columns.matrix, dst: &columns.packed, rows: one };
        submit(&stream, &operation, Timing::Off)?.wait()?;
        Ok(())
    };
    // Of buffers of its own: the first copy of a whole buffer after a list looks at each of the list's ranges.
    let in_list = Columns::new(fixture, &manager, kind, up)?;
    let mut pairs = Vec::with_capacity(rows);
    for row in 0..rows {
        let (from, to) = (row * PITCH, row * WIDTH);
        pairs.push((in_list.matrix.slice(from..from + WIDTH)?, in_list.packed.slice(to..to + WIDTH)?));
    }
    let listed = || {
        manager.copy_many(&pairs).wait()?;
        Ok(())
    };
    let ours = Variant::new("copy-strided", "copy_strided, wait()", timed(strided)).verified_by(&columns);
    let is_pinned = kind == MemoryKind::Pinned;
    let variants = vec![
        Variant::new("raw", "cuMemcpy2DAsync", timed(|| columns.raw(&queue, up))).verified_by(&columns),
        if is_pinned { ours.goal(Goal::RatioAtMost(1.03)) } else { ours },
        Variant::new("pitched", "CopyPitched, wait()", timed(by_stream)).verified_by(&columns),
        Variant::new("copy-many", "copy_many of the rows, wait()", timed(listed)).verified_by(&in_list),
    ];
    let (kind, direction) = (if is_pinned { "" } else { "pageable-" }, if up { "up" } else { "down" });
    let measured = Comparison {
        id: format!("{kind}{direction}-{rows}/{WIDTH}"),
        what: format!(
            "{rows} rows of {WIDTH} bytes every {PITCH} bytes of {kind}memory {direction}, packed there"
        ),
        unit: "ms",
        bytes: (rows * WIDTH) as u64,
        repetitions: fixture.repetitions(30),
    }
    .rows(fixture, variants)?;
    drop((pairs, in_list, columns));
    manager.drain()?;
    Ok(measured)
}

/// Returns what runs a variant and returns its time in ms.
fn timed(run: impl Fn() -> Result<()>) -> impl FnMut() -> Result<f64> {
    move || {
        let begun = Instant::now();
        run()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
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
