//! The costs of unified memory: an array is written on the host, used by a kernel and read on the host, with each approach.

use std::{cell::RefCell, ptr::NonNull, time::Instant};

use anyhow::{Context as _, Result, ensure};
use transload_core::{Access, MemoryKind, RawBuffer, StreamPriority, WorkloadType};
use transload_memory::{Role, UnifiedBuffer, UnifiedMode};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, CudaModule, CudaStream, LaunchConfig};

use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    memory::Memory,
    raw_memory::RawMemory,
    reference::{HOST, RawQueue, SAXPY, Saxpy},
    row::{Goal, Row},
};

/// Bytes used, bytes of the whole array, and repetitions. The device first zeroes every array, as `UnifiedBuffer` does: a part
/// of a block that was on the device as a whole takes some 11 µs longer to migrate to the host (H200), so it has its own rows.
const SIZES: [(usize, usize, usize); 5] = [
    (64 << 10, 64 << 10, 400),
    (64 << 10, BLOCK, 400),
    (1 << 20, 1 << 20, 200),
    (16 << 20, 16 << 20, 60),
    (256 << 20, 256 << 20, 30),
];
/// Goal: time relative to the fastest hand-written variant with unified memory.
const MOST: f64 = 1.05;
const FACTOR: f32 = 2.0;
/// The driver's block of unified memory in bytes. Smaller allocations could share one with another variant.
const BLOCK: usize = 2 << 20;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (bytes, whole, often) in SIZES {
        rows.extend(work(fixture, (fixture.bytes(bytes), fixture.bytes(whole)), often)?);
    }
    Ok(rows)
}

/// Source and result in ordinary host memory.
struct Ends {
    source: Vec<f32>,
    target: RefCell<Vec<f32>>,
}

impl Ends {
    fn new(count: usize) -> Self {
        let source = (0..count).map(|n| (n % 8191) as f32).collect();
        Self { source, target: RefCell::new(vec![0.0; count]) }
    }

    /// Writes the source to an address.
    ///
    /// # Safety
    /// * The caller owns as many floats there.
    unsafe fn put(&self, at: NonNull<f32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(&*self.source).cast(), self.source.len()) };
    }

    /// Reads the result from an address.
    ///
    /// # Safety
    /// * The caller owns as many floats there.
    unsafe fn take(&self, at: NonNull<f32>) {
        let mut target = self.target.borrow_mut();
        // SAFETY: guaranteed by the caller.
        unsafe { at.copy_to_nonoverlapping(NonNull::from(&mut **target).cast(), self.source.len()) };
    }
}

impl Verify for Ends {
    fn poison(&self) -> Result<()> {
        self.target.borrow_mut().fill(f32::NAN);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        // The kernel adds twice an array of ones.
        let target = self.target.borrow();
        let wrong = self.source.iter().zip(&*target).position(|(source, target)| source + FACTOR != *target);
        ensure!(wrong.is_none(), "element {wrong:?} is wrong");
        Ok(())
    }
}

fn host_of(memory: &RawMemory) -> Result<(NonNull<f32>, u64)> {
    match memory.address() {
        Address::Host(address) => Ok((address.cast(), address.addr().get() as u64)),
        Address::Device(_) => anyhow::bail!("the host has no address of this memory"),
    }
}

/// Allocates unified memory of whole blocks with the driver; the device zeroes `whole` bytes.
fn zeroed(queue: &RawQueue, whole: usize) -> Result<RawMemory> {
    let memory = RawMemory::new(MemoryKind::Unified, whole.max(BLOCK))?;
    let (_, at) = host_of(&memory)?;
    // SAFETY: the memory is new, and waited for.
    unsafe { queue.fill(at, 0, whole) }?;
    queue.finish()?;
    Ok(memory)
}

fn work(fixture: &Fixture<'_>, (bytes, whole): (usize, usize), often: usize) -> Result<Vec<Row>> {
    let count = bytes / size_of::<f32>();
    let ends = &Ends::new(count);
    let ones = &ones(fixture, count)?;
    let ones_at = ones.device_address().context("device memory without an address")?;
    let (queue, saxpy) = (&RawQueue::new(0)?, &Saxpy::load()?);
    let device = fixture.device.driver().as_raw();
    let kernel = CudaModule::from_ptx(&fixture.device, SAXPY)?.kernel("transload_saxpy")?;
    let stream = CudaStream::new(&fixture.device)?;
    let (kernel, stream) = (&kernel, &stream);

    let (managed, pinned) = (zeroed(queue, whole)?, RawMemory::new(MemoryKind::Pinned, bytes)?);
    let there = fixture.memory.allocate(MemoryKind::Device, bytes)?;
    let there_at = there.device_address().context("device memory without an address")?;
    let (host, at) = host_of(&managed)?;
    let raw = || {
        Variant::new("raw", "raw driver, unified memory prefetched both ways", move || {
            let begun = Instant::now();
            // SAFETY: the arrays have so many elements, live on, and are used in turns only; the queue is waited for.
            unsafe {
                ends.put(host);
                queue.prefetch(at, bytes, device)?;
                saxpy.launch(queue, FACTOR, ones_at, at, count)?;
                queue.prefetch(at, bytes, HOST)?;
                queue.finish()?;
                ends.take(host);
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .verified_by(ends)
    };
    let mut variants = vec![raw()];
    let (host, _) = host_of(&pinned)?;
    variants.push(
        Variant::new("raw-pinned", "raw driver, pinned memory and copies", move || {
            let begun = Instant::now();
            // SAFETY: as above.
            unsafe {
                ends.put(host);
                queue.copy_up(there_at, host.as_ptr().cast(), bytes)?;
                saxpy.launch(queue, FACTOR, ones_at, there_at, count)?;
                queue.copy_down(host.as_ptr().cast(), there_at, bytes)?;
                queue.finish()?;
                ends.take(host);
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .verified_by(ends),
    );

    let pool = AdvancedStreamPool::new_with_strategy(&fixture.device, 2, AllocationStrategy::LoadBalanced)?;
    let shape = LaunchConfig::for_elements(count as u64, Saxpy::BLOCK);
    for (name, method, mode) in [
        ("unified", "UnifiedBuffer", UnifiedMode::Managed),
        ("explicit", "UnifiedBuffer on pinned memory and copies", UnifiedMode::Explicit),
    ] {
        let lease = pool.lease(StreamPriority::Normal, WorkloadType::Memory)?.into_queue();
        let buffer =
            UnifiedBuffer::<f32>::new_with_mode(&fixture.memory, lease, whole / size_of::<f32>(), mode)?;
        let variant = Variant::new(name, method, move || {
            let begun = Instant::now();
            buffer.write_range(..count)?.copy_from_slice(&ends.source);
            {
                let there = buffer.acquire_range_for_device(stream, ..count, Role::InOut, Access::Write)?;
                let launch = kernel.launch(shape).arg(FACTOR).reads(ones).reads_writes(there.raw());
                // SAFETY: the kernel takes a float, two arrays of so many floats, and their number.
                unsafe { launch.arg(count as u64).enqueue(stream) }?;
            }
            drop(buffer.prefetch_to_host_on(stream, ..count));
            ends.target.borrow_mut().copy_from_slice(&buffer.read_range(..count)?);
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        });
        let goal = (mode == UnifiedMode::Managed).then_some(Goal::RatioAtMost(MOST));
        variants.push(Variant { goal, ..variant.verified_by(ends) });
    }
    let (id, of) = if bytes == whole {
        (format!("work/{bytes}"), String::new())
    } else {
        (format!("work/{bytes}-of-{whole}"), format!(" of {whole}"))
    };
    let comparison = Comparison {
        id,
        what: format!("{bytes} bytes{of} written on the host, used by a kernel, read on the host"),
        unit: "us",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(often),
    };
    let mut rows = comparison.rows(fixture, variants)?;

    // Measured apart: anything that runs within a few hundred microseconds after page faults is slower.
    let faulting = zeroed(queue, whole)?;
    let (host, at) = host_of(&faulting)?;
    let by_faults = Variant::new("raw-faults", "raw driver, unified memory by page faults", move || {
        let begun = Instant::now();
        // SAFETY: as above.
        unsafe {
            ends.put(host);
            saxpy.launch(queue, FACTOR, ones_at, at, count)?;
            queue.finish()?;
            ends.take(host);
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    });
    rows.extend(comparison.rows(fixture, vec![raw(), by_faults.verified_by(ends)])?);
    Ok(rows)
}

/// Allocates an array of ones on the device.
fn ones(fixture: &Fixture<'_>, count: usize) -> Result<RawBuffer> {
    let ones = fixture.memory.allocate(MemoryKind::Device, count * size_of::<f32>())?;
    let bytes: Vec<u8> = std::iter::repeat_n(1.0_f32.to_ne_bytes(), count).flatten().collect();
    Memory::Ours(ones.clone()).write(0, &bytes)?;
    Ok(ones)
}
