//! A pool of streams: lanes by priority and workload, leases, waiting for a free stream, and a pool that tunes itself.
//!
//! `cargo run -p transload-streams --example pool`
#[cfg(not(any(target_os = "linux", windows)))]
fn main() {
    println!("no CUDA on this system");
}

#[cfg(any(target_os = "linux", windows))]
fn main() {
    if let Err(error) = run(0) {
        println!("no CUDA here: {error}");
    }
}

#[cfg(any(target_os = "linux", windows))]
pub(crate) fn run(ordinal: u32) -> transload_core::Result<()> {
    use std::time::{Duration, Instant};

    use transload_core::{MemoryKind, Queue, StreamPriority, WorkloadType};
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::{AdvancedStreamPool, AllocationStrategy};

    let device = CudaDevice::new(ordinal)?;
    let memory = CudaMemoryManager::new(&device)?;
    // What suits the device: streams are made when they are needed.
    let pool = AdvancedStreamPool::new(&device)?;
    println!("{} streams at most for each priority: {}", pool.bounds().end(), pool.split());

    // An upload and an urgent kernel's stream: under `Workload` they never share one.
    let host = memory.allocate(MemoryKind::Pinned, 1 << 20)?;
    let there = memory.allocate(MemoryKind::Device, 1 << 20)?;
    host.write()?.fill(7);
    let copies = pool.get_stream_for_workload(WorkloadType::Memory)?;
    let urgent = pool.lease(StreamPriority::High, WorkloadType::Compute)?;
    println!("copies on {:?}, urgent kernels on {:?}", *copies, *urgent);
    let begun = Instant::now();
    let upload = copies.copy_from_host_async(&host, &there);

    // A lease ends when it is dropped, whatever its stream still does.
    drop((copies, urgent));
    upload.wait()?;
    let took = begun.elapsed();
    pool.record_workload_completion(WorkloadType::Memory, took);
    println!("uploads take {took:.1?}, {} leases are held", pool.leases());

    // A stream with nothing before one's work; the thread sleeps until there is one.
    match pool.wait_for_any_ready(Duration::from_secs(1))? {
        Some(free) => println!("{:?} is free, with {} operations in flight", *free, free.outstanding()),
        None => println!("everything was busy for a second"),
    }

    pool.set_strategy(AllocationStrategy::RoundRobin);
    println!("{}", pool.optimize_configuration());
    println!("{} idle streams given up", pool.trim());
    Ok(())
}
