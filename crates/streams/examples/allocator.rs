//! Memory in the order of streams: run with `cargo run -p transload-streams --example allocator`.

#[cfg(any(target_os = "linux", windows))]
pub(crate) fn run(ordinal: u32) -> transload_core::Result<()> {
    use std::sync::Arc;

    use transload_core::{MemoryKind, Pattern};
    use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
    use transload_streams::{CudaStream, StreamOrderedAllocator};

    let device = CudaDevice::new(ordinal)?;
    let memory = Arc::new(CudaMemoryManager::new(&device)?);
    // Segments come from the device's own memory; a limit keeps the rest for others.
    let upstream = CudaResource::new(&memory, MemoryKind::Device)?;
    let allocator = StreamOrderedAllocator::builder(upstream).limit(1 << 30).build()?;
    let (compute, copies) = (CudaStream::new(&device)?, CudaStream::new(&device)?);

    // Owned buffers: dropped while in use, their memory serves the next one behind that use.
    let first = allocator.allocate_buffer(&compute, 1 << 20)?;
    let filled = compute.memset_async(&first, Pattern::U8(1));
    drop(first);
    let second = allocator.allocate_buffer(&compute, 1 << 20)?;
    compute.memset_async(&second, Pattern::U8(2)).wait()?;
    filled.wait()?;

    // Plain blocks for a framework: it enqueues work on the address, and frees it on the same stream.
    let block = allocator.allocate_for_stream(&compute, 300_000)?;
    println!("block of {} bytes at {:#x}", block.bytes(), block.address());
    // Another stream that uses it too is recorded, so that its work is waited for.
    allocator.add_stream_dependency(&copies, &compute)?;
    allocator.record_use(block, &copies)?;
    allocator.free_on(block, &compute)?;

    let numbers = allocator.statistics();
    println!("{} bytes in use of {} held, {:?}", numbers.in_use, numbers.reserved, numbers.served);
    drop(second);
    compute.synchronize()?;
    copies.synchronize()?;
    println!("{} bytes given back", allocator.trim()?);
    Ok(())
}

fn main() {
    #[cfg(any(target_os = "linux", windows))]
    if let Err(error) = run(0) {
        println!("no CUDA here: {error}");
    }
}
