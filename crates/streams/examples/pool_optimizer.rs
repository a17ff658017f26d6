//! A pool that is told how long work took, and chooses strategy and split by it.
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
    use std::time::Duration;

    use transload_core::WorkloadType;
    use transload_memory::CudaDevice;
    use transload_streams::AdvancedStreamPool;

    let pool = AdvancedStreamPool::builder(&CudaDevice::new(0)?).streams(1..=4).build()?;
    let loads = [("kernels that are all alike", [40, 40]), ("long kernels and short copies", [900, 8])];
    for (name, [compute, memory]) in loads {
        for _ in 0..32 {
            pool.record_workload_completion(WorkloadType::Compute, Duration::from_micros(compute));
            pool.record_workload_completion(WorkloadType::Memory, Duration::from_micros(memory));
        }
        println!("{name}: {}", pool.optimize_configuration());
    }
    Ok(())
}
