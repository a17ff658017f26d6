//! What an allocation and its free cost when warm, in one thread and in several with streams of their own.
//!
//! `cargo run --release -p transload-streams --example allocator_speed`. Runs on the software driver unless
//! `TRANSLOAD_TEST_DRIVER=real`; the driver takes no part in what is measured.

#[cfg(any(target_os = "linux", windows))]
fn run() -> transload_core::Result<()> {
    use std::{
        sync::{Arc, Barrier},
        time::Instant,
    };

    use transload_core::MemoryKind;
    use transload_cuda_sim::harness;
    use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
    use transload_streams::{CudaStream, StreamOrderedAllocator};

    const PAIRS: u32 = 2_000_000;

    let test = harness::device();
    let device = CudaDevice::new(test.ordinal())?;
    let memory = Arc::new(CudaMemoryManager::new(&device)?);
    let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device)?);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("allocate + free of 1 MiB, warm, {cores} cores");
    let mut single = 0.0;
    for threads in [1, 2, 4, 8, 16].into_iter().filter(|threads| *threads == 1 || *threads <= cores) {
        // Everyone begins at once; the slowest thread counts.
        let begin = Barrier::new(threads);
        let slowest = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| -> transload_core::Result<f64> {
                        let stream = CudaStream::new(&device)?;
                        let pair = || {
                            let block = allocator.allocate_for_stream(&stream, 1 << 20)?;
                            allocator.free_for_stream(block, &stream)
                        };
                        pair()?;
                        begin.wait();
                        let begun = Instant::now();
                        for _ in 0..PAIRS {
                            pair()?;
                        }
                        Ok(begun.elapsed().as_secs_f64())
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().map_or(Ok(f64::NAN), |seconds| seconds))
                .try_fold(0.0_f64, |slowest, seconds: transload_core::Result<f64>| {
                    seconds.map(|seconds| slowest.max(seconds))
                })
        })?;
        let pairs_a_second = f64::from(PAIRS) * threads as f64 / slowest;
        if threads == 1 {
            single = pairs_a_second;
        }
        println!(
            "{threads:2} threads: {:6.1} ns a pair in each thread, {:5.2} times the throughput of one",
            slowest * 1e9 / f64::from(PAIRS),
            pairs_a_second / single
        );
    }
    Ok(())
}

fn main() {
    #[cfg(any(target_os = "linux", windows))]
    if let Err(error) = run() {
        println!("no CUDA here: {error}");
    }
}
