//! A kernel on memory that host and device share: `cargo run -p transload-streams --example launch`.
//!
//! The launch says what the kernel reads and writes. From that the executor brings the memory to the device beforehand,
//! puts the launch into its place among all other work, and brings the result back to where it is wanted.

/// y = a * x + y; saxpy.cu beside it is what to read.
#[cfg(any(target_os = "linux", windows))]
const PTX: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kernels/saxpy.ptx"));

#[cfg(any(target_os = "linux", windows))]
pub(crate) fn run(ordinal: u32) -> transload_core::Result<()> {
    use transload_core::{DeviceId, MemoryKind};
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::{CudaModule, CudaStream, LaunchConfig, LaunchExecutor};

    let device = CudaDevice::new(ordinal)?;
    let memory = CudaMemoryManager::new(&device)?;
    let stream = CudaStream::new(&device)?;
    let executor = LaunchExecutor::new(&device)?;
    let saxpy = CudaModule::from_ptx(&device, PTX)?.kernel("transload_saxpy")?;

    let count = 1_u64 << 20;
    let (x, y) =
        (memory.allocate(MemoryKind::Unified, 4 << 20)?, memory.allocate(MemoryKind::Unified, 4 << 20)?);
    for (buffer, value) in [(&x, 1.0_f32), (&y, 2.0)] {
        buffer.write()?.chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&value.to_le_bytes()));
    }

    let launch = saxpy
        .launch(LaunchConfig::for_elements(count, 256))
        .arg(3.0_f32)
        .reads(&x)
        .reads_writes(&y)
        .arg(count)
        .result_on(DeviceId::Cpu);
    // SAFETY: the kernel takes a float, two pointers and a count, and touches `count` floats of each buffer.
    unsafe { executor.enqueue(launch, &stream) }?;

    // A view of the result waits for it.
    let right = y.read()?.chunks_exact(4).all(|number| number == 5.0_f32.to_le_bytes());
    println!("3 * 1 + 2 on {}: {}", device.id(), if right { "5 everywhere" } else { "wrong" });
    Ok(())
}

#[cfg(any(target_os = "linux", windows))]
fn main() {
    if let Err(error) = run(0) {
        println!("no CUDA here: {error}");
    }
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() {
    println!("no CUDA on this system");
}
