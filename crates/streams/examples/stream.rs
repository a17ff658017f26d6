//! One stream: copies that own their memory, a callback at their end, metrics, and work of one's own through the handle.
//!
//! `cargo run -p transload-streams --example stream`; without CUDA it says so and ends.

#[cfg(any(target_os = "linux", windows))]
fn main() {
    if let Err(error) = example::run(0) {
        println!("no CUDA here: {error}");
    }
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() {
    println!("no CUDA on this system");
}

#[cfg(any(target_os = "linux", windows))]
pub(crate) mod example {
    use std::sync::mpsc;

    use transload_core::{MemoryKind, Pattern, Result, StreamPriority};
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::{CudaEvent, CudaStream, MetricsSampling};

    pub(crate) fn run(ordinal: u32) -> Result<()> {
        let device = CudaDevice::new(ordinal)?;
        let memory = CudaMemoryManager::new(&device)?;
        let stream = CudaStream::new_with_priority(&device, StreamPriority::High)?;
        println!("{stream:?}: the driver says priority {}", stream.driver_priority()?);
        stream.enable_metrics(MetricsSampling::ALL);

        let host = memory.allocate(MemoryKind::Pinned, 1 << 20)?;
        let there = memory.allocate(MemoryKind::Device, 1 << 20)?;
        host.write()?.fill(7);

        // Enqueued when the call returns. Dropping the handle neither waits nor cancels, and the memory stays alive.
        drop(stream.copy_from_host_async(&host, &there));

        // Work on one buffer is ordered by itself, also across streams: this comes after the copy.
        let second = CudaStream::new(&device)?;
        drop(second.memset_async(&there.slice(..4096)?, Pattern::U32(0)));

        // Runs on a thread of the library's once everything above on `stream` is done.
        let (sender, receiver) = mpsc::channel();
        stream.add_callback(move |outcome| {
            let _nobody_listens_any_more = sender.send(outcome);
        })?;

        // Awaited by any executor, or waited for; the view waits too.
        let report = second.copy_to_host_async(&there, &host).wait()?;
        let view = host.read()?;
        println!("{report}; first bytes {:?}, last {:?}", &view[..2], &view[view.len() - 2..]);
        drop(view);

        // An event orders what the library does not know of: kernels that you launch through `driver()`, say.
        let event = CudaEvent::new(&device)?;
        event.record(&second)?;
        stream.wait_event(&event)?;
        stream.synchronize()?;
        if let Ok(outcome) = receiver.try_recv() {
            println!("the callback was told {outcome:?} before synchronize returned");
        }

        let metrics = stream.metrics();
        println!(
            "{} operations, {} transfers, {:?} on average",
            metrics.operations_count, metrics.memory_transfers, metrics.average_latency
        );
        // Gives the memory back now; left out, a thread of the library does so a moment later.
        drop((host, there));
        memory.drain()
    }
}
