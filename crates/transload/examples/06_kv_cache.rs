//! 06 KV cache: more sequences than the GPU has room for. Blocks go out and come back while kernels run.
//!
//! `cargo run -p transload --features cuda,safetensors --example 06_kv_cache`; append `-- --simulate` to try it without a GPU, and
//! `-- --model FILE` to load a file of weights first.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use std::collections::VecDeque;

use transload::{Array, Result, Runtime, StreamPriority, Transfer, cuda::LaunchConfig};

const KERNELS: &str = include_str!("kernels/kernels.ptx");
/// Elements of a block (256 KiB), blocks that fit on the GPU, and sequences with one block each.
const BLOCK: usize = 64 << 10;
const SLOTS: usize = 4;
const SEQUENCES: usize = 10;
const STEPS: usize = 60;

/// Which sequence's block is where.
struct Cache {
    rt: Runtime,
    /// The blocks on the GPU, the one used longest ago first, each with the sequence that has it.
    slots: VecDeque<(usize, Array<f32>)>,
    /// A place on the host for each sequence's block.
    spilled: Vec<Array<f32>>,
    moves: Vec<Transfer>,
}

impl Cache {
    /// The sequence's block on the GPU. If it is on the host it takes the slot of the block used longest ago. This waits for
    /// nothing: each copy runs after earlier work on the same bytes, and beside all other work.
    fn block(&mut self, sequence: usize) -> Option<Array<f32>> {
        let at = self.slots.iter().position(|(owner, _)| *owner == sequence);
        let (owner, slot) = self.slots.remove(at.unwrap_or(0))?;
        if owner != sequence {
            let copy = |from: &Array<f32>, to: &Array<f32>, priority| {
                self.rt.copy(from, to).priority(priority).submit()
            };
            // A kernel waits for the incoming block; nothing waits for the outgoing one.
            self.moves.push(copy(&slot, &self.spilled[owner], StreamPriority::Normal));
            self.moves.push(copy(&self.spilled[sequence], &slot, StreamPriority::High));
        }
        self.slots.push_back((sequence, slot.clone()));
        Some(slot)
    }
}

/// The tensors of the file that the arguments name, if any, in device memory.
#[cfg(feature = "safetensors")]
fn weights(rt: &Runtime) -> Result<Option<transload::load::LoadedModel>> {
    use transload::{DeviceId, MemoryKind, Place, load::LoadOptions};
    let file = std::env::args().skip_while(|argument| argument != "--model").nth(1);
    let there = LoadOptions::new(Place::new(DeviceId::Cuda(0), MemoryKind::Device));
    let model = file.map(|file| rt.load(file, &there)).transpose()?;
    if let Some(model) = &model {
        println!("{}", model.report());
    }
    Ok(model)
}

pub(crate) fn main() -> Result<()> {
    simulate::if_asked();
    let rt = Runtime::discover()?;
    let gpu = rt.cuda(0)?;
    #[cfg(feature = "safetensors")]
    let _weights = weights(&rt)?;
    let scale_add = gpu.kernel(KERNELS, "scale_add")?;
    let stream = gpu.stream()?;

    // One allocation for all slots, and one for all places on the host. The first blocks are on the GPU.
    let (cache, host) = (gpu.zeros::<f32>(SLOTS * BLOCK)?, gpu.pinned::<f32>(SEQUENCES * BLOCK)?);
    host.fill(0.0)?;
    let block = |of: &Array<f32>, index: usize| of.slice(index * BLOCK..(index + 1) * BLOCK);
    let slots = (0..SLOTS).map(|slot| Ok((slot, block(&cache, slot)?))).collect::<Result<_>>()?;
    let spilled = (0..SEQUENCES).map(|sequence| block(&host, sequence)).collect::<Result<_>>()?;
    let mut blocks = Cache { rt: rt.clone(), slots, spilled, moves: Vec::new() };

    // Each step adds 1 to the block of one sequence; some sequences come often. Nothing here waits for the GPU.
    let ones = gpu.upload(&[1.0_f32; BLOCK])?;
    let (mut steps, shape) = ([0.0; SEQUENCES], LaunchConfig::for_elements(BLOCK as u64, 256));
    for step in 0..STEPS {
        let sequence = step * step % SEQUENCES;
        let Some(block) = blocks.block(sequence) else { continue };
        let launch = scale_add.launch(shape).arg(1.0_f32).reads(&ones).reads_writes(&block);
        // SAFETY: these are the kernel's parameters, and it touches `BLOCK` floats of each buffer.
        unsafe { launch.arg(BLOCK as u64).enqueue(&stream) }?;
        steps[sequence] += 1.0;
    }
    println!("{STEPS} steps submitted with {} moves", blocks.moves.len());
    assert!(blocks.moves.len() > SEQUENCES);

    // The outcome of each move, then every block.
    blocks.moves.drain(..).try_for_each(|transfer| transfer.wait().map(drop))?;
    for (sequence, expected) in steps.iter().enumerate() {
        let found = blocks.block(sequence).map(|block| rt.download(&block).wait()).transpose()?;
        assert!(found.is_some_and(|block| block.iter().all(|element| element == expected)));
    }
    drop((blocks, cache, host, ones));
    rt.drain()
}
