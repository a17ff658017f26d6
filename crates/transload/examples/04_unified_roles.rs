//! 04 Unified memory with roles: one buffer for the host and a GPU, and what each is used for.
//!
//! `cargo run -p transload --features cuda --example 04_unified_roles`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use transload::{
    ErrorKind, Result, Runtime,
    cuda::{LaunchConfig, Role},
};

const KERNELS: &str = include_str!("kernels/kernels.ptx");
const COUNT: usize = 1 << 20;

pub(crate) fn main() -> Result<()> {
    simulate::if_asked();
    let rt = Runtime::discover()?;
    let gpu = rt.cuda(0)?;

    // Where host and device may use managed memory at the same time it is that; elsewhere the same program copies.
    let (x, y) = (gpu.unified::<f32>(COUNT)?, gpu.unified::<f32>(COUNT)?);
    println!("{} elements on {:?}, {}", COUNT, gpu, x.mode());
    x.write()?.fill(1.0);
    y.write()?.fill(2.0);

    let stream = gpu.stream()?;
    let scale_add = gpu.kernel(KERNELS, "scale_add")?;

    // The device uses a buffer through a guard with a role. The driver gets the advice that fits, and the pages travel
    // ahead of the kernel: `x` is only read, so that both sides may keep a copy; `y` moves back and forth.
    let input = x.acquire_for_device(&stream, Role::Input)?;
    let output = y.acquire_for_device(&stream, Role::InOut)?;
    // Meanwhile the host may read what the device reads, and not what it writes.
    assert_eq!(x.try_read(..1)?[0], 1.0);
    assert_eq!(y.try_read(..1).err().map(|error| error.kind()), Some(ErrorKind::Busy));

    let launch = scale_add
        .launch(LaunchConfig::for_elements(COUNT as u64, 256))
        .arg(3.0_f32)
        .reads(&input)
        .reads_writes(&output)
        .arg(COUNT as u64);
    // SAFETY: these are the kernel's parameters, and it touches `COUNT` floats of each buffer.
    unsafe { launch.enqueue(&stream) }?;
    // Once the launch is enqueued the buffers know of it, and the guards may go.
    drop((input, output));

    // The result travels to the host behind the kernel. A slice waits for both.
    let back = y.prefetch_to_host();
    assert!(y.read()?.iter().all(|element| *element == 5.0));
    println!("{}", back.wait()?);

    // It is a buffer like any other, and can be copied.
    let there = gpu.alloc::<f32>(COUNT)?;
    println!("{}", rt.copy(&y, &there).wait()?);
    assert_eq!(*rt.download(&there.slice(..2)?).wait()?, [5.0, 5.0]);

    drop((x, y, there));
    rt.drain()
}
