//! 05 Streams, launches and graphs: copies and kernels in one order, and many of them in one call.
//!
//! `cargo run -p transload --features cuda --example 05_streams_graphs`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use transload::{
    Result, Runtime, StreamPriority,
    cuda::{LaunchConfig, Operation, Pattern},
};

const KERNELS: &str = include_str!("kernels/kernels.ptx");
const COUNT: usize = 1 << 18;

pub(crate) fn main() -> Result<()> {
    simulate::if_asked();
    let rt = Runtime::discover()?;
    let gpu = rt.cuda(0)?;
    let (compute, copies) = (gpu.stream()?, gpu.stream_with_priority(StreamPriority::High)?);
    let (input, output) = (gpu.pinned::<f32>(COUNT)?, gpu.pinned::<f32>(COUNT)?);
    let (x, y) = (gpu.alloc::<f32>(COUNT)?, gpu.zeros::<f32>(COUNT)?);
    input.fill(1.5)?;

    // `on` puts a copy into the order of a stream; without it the library takes a stream of its pool.
    let up = rt.copy(&input, &x).on(&copies).submit();

    // A launch says what its kernel reads and writes. So it runs after the copy into `x`, though on another stream: the
    // streams wait for each other on the GPU, without explicit events.
    let scale_add = gpu.kernel(KERNELS, "scale_add")?;
    let launch = || {
        let shape = LaunchConfig::for_elements(COUNT as u64, 256);
        scale_add.launch(shape).arg(2.0_f32).reads(&x).reads_writes(&y).arg(COUNT as u64)
    };
    // SAFETY: these are the kernel's parameters, and it touches `COUNT` floats of each buffer.
    let kernel = unsafe { launch().enqueue(&compute) }?;

    // The download waits for the kernel since it reads `y`. `after` is for what the library cannot know: any fence will do.
    let down = rt.copy(&y, &output).on(&copies).after(&kernel).submit();
    println!("submitted: {:?}, {:?}", up.state(), down.state());
    println!("{}\n{}", up.wait()?, down.wait()?);
    assert!(output.read()?.iter().all(|element| *element == 3.0));

    // A graph is recorded once, and launched in one call. What touches common bytes runs in the order given.
    let half = x.slice(COUNT / 2..)?;
    let graph = gpu.graph(&[
        Operation::copy(&input, &x),
        Operation::fill(&half, Pattern::U32(0)),
        Operation::copy(&x, &output),
    ])?;
    println!("a graph of {} nodes", graph.nodes());
    for round in 1..=3 {
        // The guard waits for the launch before: a graph is ordered like any other work.
        input.write()?.fill(round as f32);
        graph.launch(&compute)?;
        let seen = output.read()?;
        assert!(seen[..COUNT / 2].iter().all(|element| *element == round as f32));
        assert!(seen[COUNT / 2..].iter().all(|element| *element == 0.0));
    }

    drop((input, output, x, y, half, graph));
    rt.drain()
}
