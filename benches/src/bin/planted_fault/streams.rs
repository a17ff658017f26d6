//! Pool, allocator and launches: correct, or with one fault in the use of the allocator.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use transload_core::{Error, ErrorKind, MemoryKind, StreamPriority, WorkloadType};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{
    AdvancedStreamPool, CudaKernel, CudaModule, CudaStream, FreeError, LaunchConfig, StreamOrderedAllocator,
};

/// `transload_spin(nanoseconds, out)`: stores when it began and ended.
const SPIN: &str = transload_benches::reference::SPIN;
const NANOSECONDS: u64 = 1_000;
/// Bytes that the kernel stores.
const STAMPS: usize = 16;
const ROUNDS: usize = 48;
/// An address that no driver gives out.
const NOWHERE: u64 = 4096;

struct Parts {
    device: CudaDevice,
    memory: Arc<CudaMemoryManager>,
    allocator: StreamOrderedAllocator,
    kernel: CudaKernel,
}

impl Parts {
    fn new(ordinal: u32) -> Result<Self> {
        let device = CudaDevice::new(ordinal)?;
        let memory = Arc::new(CudaMemoryManager::new(&device)?);
        let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device)?);
        let kernel = CudaModule::from_ptx(&device, SPIN)?.kernel("transload_spin")?;
        Ok(Self { device, memory, allocator, kernel })
    }
}

/// Kernels on leases write blocks that other leases read; blocks are freed and used again. Every result is looked at.
/// Answers how many launches there were.
pub(super) fn nothing(ordinal: u32) -> Result<usize> {
    let Parts { device, memory, allocator, kernel } = Parts::new(ordinal)?;
    let pool = AdvancedStreamPool::new(&device)?;
    let back = memory.allocate(MemoryKind::Pinned, STAMPS)?;
    for round in 0..ROUNDS {
        let priority = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low][round % 3];
        let lease = pool.lease(priority, WorkloadType::Compute)?;
        let buffer = allocator.allocate_buffer(&lease, STAMPS + 1000 * round)?;
        // By hand, between the buffer and its use, so that blocks of both layers lie beside each other.
        let block = allocator.allocate_for_stream(&lease, 1 << (9 + round % 12))?;
        let launch = kernel.launch(LaunchConfig::linear(2, 64)).arg(NANOSECONDS).writes(&buffer);
        // SAFETY: the parameters are the kernel's, which stores two numbers of 8 bytes at the buffer's beginning.
        unsafe { launch.enqueue(&lease) }?;
        allocator.free_on(block, &lease)?;
        let reader = pool.lease(priority, WorkloadType::Memory)?;
        reader.copy_to_host_async(&buffer.slice(..STAMPS)?, &back).wait()?;
        let bytes = back.read()?;
        let stamp = |at: usize| -> Result<u64> {
            let stamp = bytes.get(at..at + 8).context("a stamp is missing")?;
            Ok(u64::from_le_bytes(stamp.try_into()?))
        };
        let (start, end) = (stamp(0)?, stamp(8)?);
        ensure!(end.wrapping_sub(start) >= NANOSECONDS, "round {round}: began at {start}, ended at {end}");
    }
    pool.synchronize()?;
    drop((pool, back, kernel, allocator));
    memory.drain()?;
    let counts = memory.resource_counts();
    ensure!(counts.is_empty(), "still allocated after leases and blocks: {counts}");
    Ok(ROUNDS)
}

/// A kernel stores behind the last block of a segment: the checker knows the segment, not the blocks in it.
pub(super) fn segment(ordinal: u32) -> Result<()> {
    let Parts { device, allocator, kernel, .. } = Parts::new(ordinal)?;
    let stream = CudaStream::new(&device)?;
    // A segment of its own, of just this size.
    let bytes = 32 << 20;
    let block = allocator.allocate_for_stream(&stream, bytes)?;
    ensure!(allocator.statistics().reserved == block.bytes(), "the block is only a part of its segment");
    let behind = block.address() + block.bytes();
    let launch = kernel.launch(LaunchConfig::linear(1, 1)).arg(0_u64).address(behind);
    // SAFETY: none: that the store is behind the segment is the fault that this program is for.
    unsafe { launch.enqueue(&stream) }?;
    stream.synchronize()?;
    println!("planted: a kernel stored {STAMPS} bytes behind a segment of {bytes}");
    Ok(())
}

/// Frees that a checker of memory cannot see, since the memory stays the allocator's: on another stream, twice, and of what
/// was never allocated. The allocator's own check must refuse each, and go on.
pub(super) fn free(ordinal: u32) -> Result<()> {
    let Parts { device, allocator, .. } = Parts::new(ordinal)?;
    let (own, other) = (CudaStream::new(&device)?, CudaStream::new(&device)?);
    let block = allocator.allocate_for_stream(&own, 4096)?;
    refused(allocator.free_on(block, &other), FreeError::WrongStream)?;
    allocator.free_on(block, &own)?;
    refused(allocator.free_on(block, &own), FreeError::AlreadyFreed)?;
    refused(allocator.free_on(NOWHERE, &own), FreeError::NeverAllocated)?;
    let again = allocator.allocate_for_stream(&own, 4096)?;
    ensure!(again.address() == block.address(), "the block was not used again");
    allocator.free_on(again, &own)?;
    println!("planted: 3 wrong frees, all caught by our own check");
    Ok(())
}

fn refused(outcome: Result<(), Error>, expected: FreeError) -> Result<()> {
    let error = outcome.err().context("a wrong free was taken")?;
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<FreeError>());
    ensure!(
        error.kind() == ErrorKind::InvalidArgument && cause == Some(&expected),
        "expected {expected:?}: {error}"
    );
    println!("refused: {error}");
    Ok(())
}
