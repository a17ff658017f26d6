//! One buffer for the host and a device: `cargo run -p transload-backend-cuda --example unified`.
//!
//! The host uses it through slices, the device through a guard. Each side sees the other's earlier writes, without
//! explicit waits, and neither can access it while the other writes. On a device without managed memory the same
//! program copies.

#[cfg(any(target_os = "linux", windows))]
pub(crate) fn run(ordinal: u32) -> transload_core::Result<()> {
    use transload_backend_cuda::{CudaBackend, CudaBackendConfig, CudaStream, Role};
    use transload_core::{Buffer, Pattern};

    let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([ordinal]))?;
    let buffer = backend.allocate_unified::<f32>(ordinal, 1 << 20)?;
    println!("{} elements on {}, {}", buffer.len(), buffer.device(), buffer.mode());

    // The host writes. When the slice closes, devices see it.
    buffer.write()?.fill(1.5);

    // A device works, on a stream of ours: here it clears the first half. A kernel's launch would declare `there.raw()`.
    let stream = CudaStream::new(backend.device(ordinal)?)?;
    let there = buffer.acquire_for_device(&stream, Role::Output)?;
    let half = there.raw().slice(..2 << 20)?;
    let cleared = stream.memset_async(&half, Pattern::U8(0));
    drop(there);

    // On its way to the host meanwhile; a slice waits for both.
    let back = buffer.prefetch_to_host();
    let sum: f64 = buffer.read()?.iter().map(|number| f64::from(*number)).sum();
    println!("the sum is {sum}, as it should be: {}", f64::from(1 << 19) * 1.5);

    // The handles return the outcome.
    cleared.wait()?;
    back.wait()?;
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
