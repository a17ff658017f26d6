//! Lends a buffer to another library and takes it back, without a copy: on the host, and on a device in the order of streams.
//!
//! `cargo run -p transload-dlpack --example dlpack`; without CUDA the second half says so and ends.

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, MemoryKind, Result};
use transload_dlpack::{Export, Importer, ManagedTensor};

fn main() -> Result<()> {
    on_the_host()?;
    #[cfg(any(target_os = "linux", windows))]
    if let Err(error) = example::run(0) {
        println!("no CUDA here: {error}");
    }
    Ok(())
}

pub(crate) fn on_the_host() -> Result<()> {
    let backend = CpuBackend::new()?;
    let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 24)?;

    // Export: a pointer for a capsule named "dltensor_versioned". From here on the buffer is the consumer's.
    let tensor = Export::of::<f32>(&buffer).shape(&[2, 3]).versioned()?;
    println!("lent: {}", buffer.try_read().is_err());
    let pointer = tensor.into_raw();

    // Import: what a consumer does with such a pointer.
    // SAFETY: it comes from `into_raw` just above, has no other owner, and the memory is idle.
    let tensor = unsafe { ManagedTensor::from_raw(pointer, &[]) }?;
    let importer = Importer::new();
    let there = importer.import_as::<f32, _>(tensor)?;
    println!("imported: shape {:?}, strides {:?}, {:?}", there.shape(), there.strides(), there.buffer());
    there.buffer().write()?.fill(7);

    // After the last handle's drop another thread calls the deleter, which ends the loan.
    drop(there);
    importer.drain()?;
    println!("back, and written in place: {:?}", &buffer.read()?[..4]);
    Ok(())
}

#[cfg(any(target_os = "linux", windows))]
pub(crate) mod example {
    use transload_core::{MemoryKind, Pattern, Result};
    use transload_dlpack::{Export, Importer, protocol_stream};
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::CudaStream;

    pub(crate) fn run(ordinal: u32) -> Result<()> {
        let device = CudaDevice::new(ordinal)?;
        let memory = CudaMemoryManager::new(&device)?;
        let (ours, theirs) = (CudaStream::new(&device)?, CudaStream::new(&device)?);
        let buffer = memory.allocate(MemoryKind::Device, 1 << 20)?;
        let host = memory.allocate(MemoryKind::Pinned, 1 << 20)?;

        // Work in flight is no obstacle: the consumer's stream waits for it, the host does not. For a raw handle, as Python
        // passes it in `__dlpack__(stream=...)`, there is `for_consumer`.
        drop(ours.memset_async(&buffer, Pattern::U8(7)));
        let tensor = Export::of::<f32>(&buffer).for_stream(&theirs).versioned()?;
        println!("a producer would be told stream={}", protocol_stream(&theirs));

        // Taken in again, it is ordered like any buffer of ours.
        let importer = Importer::new().with_device(&device);
        let there = importer.import(tensor)?.into_buffer();
        theirs.copy_to_host_async(&there, &host).wait()?;
        println!("{there:?} is all sevens: {}", host.read()?.iter().all(|byte| *byte == 7));
        drop(there);
        importer.drain()
    }
}
