//! A thousand transfers under tokio, awaited concurrently on two worker threads without blocking them.
//!
//! `cargo run -p transload --example tokio --features cuda`

use std::sync::Arc;

use transload::{DeviceId, MemoryKind, Result, Runtime, TransferOptions};

const COUNT: usize = 1000;
const EACH: usize = 64 << 10;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let runtime = Arc::new(Runtime::discover()?);
    let gpu = runtime.devices().into_iter().find(|device| !device.id.is_cpu());
    // Pinned memory: the driver copies pageable memory during the call, which would block the worker.
    let (near, far) = match &gpu {
        Some(gpu) => ((gpu.id, MemoryKind::Pinned), (gpu.id, MemoryKind::Device)),
        None => ((DeviceId::Cpu, MemoryKind::Pageable), (DeviceId::Cpu, MemoryKind::Pageable)),
    };
    match &gpu {
        Some(gpu) => println!("to {} and back", gpu.name),
        None => {
            let reasons: Vec<_> = runtime.absent().iter().map(|(_, reason)| reason.to_string()).collect();
            println!("no GPU ({}): within the host's memory", reasons.join("; "));
        }
    }
    let manager = runtime.manager();
    let src = manager.allocate_for(near.0, near.1, COUNT * EACH)?;
    let back = manager.allocate_for(near.0, near.1, COUNT * EACH)?;
    let there = manager.allocate_for(far.0, far.1, COUNT * EACH)?;
    for (index, piece) in src.write_async().await?.chunks_mut(EACH).enumerate() {
        piece.fill(index as u8);
    }

    // First-use work (a context, kernels) runs on a thread that may block.
    let (first, places) = (Arc::clone(&runtime), (src.place(), there.place()));
    let prepared = tokio::task::spawn_blocking(move || {
        first.manager().prepare(places.0, places.1, &TransferOptions::new())
    });
    prepared.await.map_or(Ok(()), |outcome| outcome)?;

    let begun = std::time::Instant::now();
    let tasks: Vec<_> = (0..COUNT)
        .map(|index| {
            let (runtime, src, there, back) =
                (Arc::clone(&runtime), src.clone(), there.clone(), back.clone());
            tokio::spawn(async move {
                let (manager, at, options) = (runtime.manager(), index * EACH, TransferOptions::new());
                manager
                    .copy(&src.slice(at..at + EACH).unwrap(), &there.slice(at..at + EACH).unwrap())
                    .options(options)
                    .await?;
                manager
                    .copy(&there.slice(at..at + EACH).unwrap(), &back.slice(at..at + EACH).unwrap())
                    .options(options)
                    .await
            })
        })
        .collect();
    let mut simulated = false;
    for task in tasks {
        // tokio reports a task that panicked.
        if let Ok(outcome) = task.await {
            simulated |= outcome?.simulated;
        }
    }
    let took = begun.elapsed();

    let same = *src.read_async().await? == *back.read_async().await?;
    let simulated = if simulated { " (simulated)" } else { "" };
    println!("{COUNT} × {EACH} bytes there and back in {took:.1?}{simulated}; equal: {same}");
    drop((src, there, back));
    runtime.drain()
}
