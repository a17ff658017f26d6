//! Two loads that want different streams: each is replayed on every strategy, measured by events, and then on what the pool
//! makes of it.
//!
//! `cargo run --release -p transload-streams --example pool_optimizer`
#[cfg(not(any(target_os = "linux", windows)))]
fn main() {
    println!("no CUDA on this system");
}

#[cfg(any(target_os = "linux", windows))]
fn main() {
    if let Err(error) = run() {
        println!("no CUDA here: {error}");
    }
}

#[cfg(any(target_os = "linux", windows))]
fn run() -> transload_core::Result<()> {
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::{AdvancedStreamPool, AllocationStrategy, RecordedLoad};

    const STREAMS: usize = 4;
    let device = CudaDevice::new(0)?;
    let memory = CudaMemoryManager::new(&device)?;
    let loads = [
        ("96 × 2 equal kernels of one block", RecordedLoad::of_equal_kernels(96)),
        ("64 × (48 kernels in a row, 3 small copies)", RecordedLoad::of_kernels_and_copies(64)),
    ];
    for (name, load) in &loads {
        println!("{name}, on {STREAMS} streams");
        for strategy in AllocationStrategy::ALL {
            let pool = AdvancedStreamPool::new_with_strategy(&device, STREAMS, strategy)?;
            // The first run makes the streams and loads the kernel.
            pool.replay(&memory, load)?;
            println!("  {strategy:<12}: {}", pool.replay(&memory, load)?);
        }
        let pool = AdvancedStreamPool::new_with_strategy(&device, STREAMS, AllocationStrategy::LoadBalanced)?;
        pool.replay(&memory, load)?;
        println!("  optimised:    {}", pool.optimize_configuration().to_string().replace('\n', "\n  "));
        println!("  after that:   {}", pool.replay(&memory, load)?);
    }
    Ok(())
}
