//! What it costs to enqueue a launch: 64 of a kernel that ends at once, the stream is drained outside the timed part.

use std::time::Instant;

use anyhow::Result;
use transload_core::MemoryKind;
use transload_streams::{CudaModule, CudaStream, LaunchConfig};

use super::{
    Fixture, SPIN,
    comparison::{Comparison, Variant},
};
use crate::{reference::RawQueue, row::Row};

/// Launches of one measurement: few enough not to fill the launch queue.
const MANY: usize = 64;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let queue = RawQueue::new(0)?;
    let stream = CudaStream::new(&fixture.device)?;
    let kernel = CudaModule::from_ptx(&fixture.device, SPIN)?.kernel("transload_spin")?;
    let out = fixture.memory.allocate(MemoryKind::Device, 16)?;
    let shape = LaunchConfig::linear(1, 1);
    let variants = vec![
        Variant::new("raw", "raw driver, cuLaunchKernel", || {
            let begun = Instant::now();
            for _ in 0..MANY {
                // SAFETY: the stream is of the module's context.
                unsafe { fixture.spin.launch(queue.raw(), 1, 1, 0) }?;
            }
            let took = each(begun);
            queue.finish()?;
            Ok(took)
        }),
        Variant::new("enqueue", "CudaKernel, no memory declared", || {
            let begun = Instant::now();
            for _ in 0..MANY {
                // SAFETY: the parameters are the kernel's; with an address of 0 it stores nothing.
                unsafe { kernel.launch(shape).arg(0_u64).arg(0_u64).enqueue(&stream) }?;
            }
            let took = each(begun);
            stream.synchronize()?;
            Ok(took)
        }),
        Variant::new("enqueue-writes", "CudaKernel, one buffer declared", || {
            let begun = Instant::now();
            for _ in 0..MANY {
                // SAFETY: the parameters are the kernel's, which stores two numbers of 8 bytes.
                unsafe { kernel.launch(shape).arg(0_u64).writes(&out).enqueue(&stream) }?;
            }
            let took = each(begun);
            stream.synchronize()?;
            Ok(took)
        }),
    ];
    let comparison = Comparison {
        id: "launch".to_owned(),
        what: format!("enqueuing a kernel that ends at once, {MANY} in a row"),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(300),
    };
    comparison.rows(fixture, variants)
}

fn each(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / MANY as f64
}
