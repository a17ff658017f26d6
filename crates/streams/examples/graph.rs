//! Records an upload, a fill and a download once, and launches them as one, again and again.
//!
//! `cargo run -p transload-streams --example graph`

fn main() {
    #[cfg(any(target_os = "linux", windows))]
    if let Err(error) = example::run(0) {
        println!("no CUDA here: {error}");
    }
    #[cfg(not(any(target_os = "linux", windows)))]
    println!("no CUDA on this system");
}

#[cfg(any(target_os = "linux", windows))]
pub(crate) mod example {
    use std::time::Instant;

    use transload_core::{MemoryKind, Operation, Pattern, Result, StreamPriority};
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::{CudaGraph, CudaStream};

    const BYTES: usize = 1 << 20;

    pub(crate) fn run(ordinal: u32) -> Result<()> {
        let device = CudaDevice::new(ordinal)?;
        let memory = CudaMemoryManager::new(&device)?;
        let stream = CudaStream::new(&device)?;
        let input = memory.allocate(MemoryKind::Pinned, BYTES)?;
        let there = memory.allocate(MemoryKind::Device, BYTES)?;
        let output = memory.allocate(MemoryKind::Pinned, BYTES)?;
        let half = there.slice(BYTES / 2..)?;

        // What touches common bytes runs in this order. Nothing runs yet.
        let graph = CudaGraph::record(
            &device,
            StreamPriority::Normal,
            &[
                Operation::Copy { src: &input, dst: &there },
                Operation::Fill { dst: &half, pattern: Pattern::U8(0xFF) },
                Operation::Copy { src: &there, dst: &output },
            ],
        )?;
        println!("recorded {} nodes", graph.nodes());

        for value in 1..=3 {
            // Waits for the launch before: the graph orders like any other work.
            input.write()?.fill(value);
            let begun = Instant::now();
            let fence = graph.launch(&stream)?;
            let submitting = begun.elapsed();
            fence.wait()?;
            let seen = output.read()?;
            println!(
                "launch {value}: the halves hold {} and {} (one call, {submitting:?})",
                seen[0],
                seen[BYTES - 1]
            );
        }
        Ok(())
    }
}
