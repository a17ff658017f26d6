//! Three streams ordered on the device: a dependency, a refused cycle, a barrier, tasks in parallel and a callback.

#[cfg(not(any(target_os = "linux", windows)))]
fn main() {
    println!("CUDA exists on Linux and Windows only");
}

#[cfg(any(target_os = "linux", windows))]
fn main() {
    if let Err(error) = example::run(0) {
        println!("no CUDA here: {error}");
    }
}

#[cfg(any(target_os = "linux", windows))]
pub(crate) mod example {
    use transload_core::{MemoryKind, Pattern, Result};
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::{CudaStream, MultiStreamCoordinator};

    pub(crate) fn run(ordinal: u32) -> Result<()> {
        let device = CudaDevice::new(ordinal)?;
        let memory = CudaMemoryManager::new(&device)?;
        let [load, compute, store] =
            [CudaStream::new(&device)?, CudaStream::new(&device)?, CudaStream::new(&device)?];
        let coordinator = MultiStreamCoordinator::new();
        for stream in [&load, &compute, &store] {
            coordinator.register(stream);
        }

        // Nothing here blocks the host: the device waits. (Buffers of this library would be ordered without it, too;
        // raw copies and kernels of a framework are not.)
        let tile = memory.allocate(MemoryKind::Device, 64 << 20)?;
        drop(load.memset_async(&tile, Pattern::U8(1)));
        println!("compute after load: {:?}", coordinator.add_dependency(&compute, &load)?);
        println!("store after compute: {:?}", coordinator.add_dependency(&store, &compute)?);

        // The plan so far is load → compute → store. Refused unless the fill is over by now.
        match coordinator.add_dependency(&load, &store) {
            Ok(dependency) => println!("load after store: {dependency:?}"),
            Err(refused) => println!("refused: {refused}"),
        }

        // All streams, or those of several devices, meet here.
        coordinator.add_completion_callback(&load, |outcome| println!("the tile is loaded: {outcome:?}"))?;
        coordinator.create_barrier()?.wait()?;
        println!("{} callback ran", coordinator.execute_all_callbacks().ran);

        // Each task has its own outcome.
        let tasks = (0..6_u8).map(|n| {
            let memory = &memory;
            move |stream: &CudaStream| {
                drop(stream.memset_async(&memory.allocate(MemoryKind::Device, 1 << 20)?, Pattern::U8(n)));
                Ok(n)
            }
        });
        for outcome in coordinator.execute_parallel(tasks)? {
            match outcome {
                Ok(n) => println!("task {n} is done"),
                Err(error) => println!("{error}"),
            }
        }
        Ok(())
    }
}
