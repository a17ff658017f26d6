//! Times `Backend::allocate` and drop of warm buffers on the software driver, in ns of processor time a pair.

#[cfg(any(target_os = "linux", windows))]
mod timing {
    use std::{
        any::Any,
        hint::black_box,
        sync::{
            Arc, Barrier,
            atomic::{AtomicU64, Ordering},
        },
        task::Waker,
        thread,
    };

    use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
    use transload_core::{
        Access, Backend, Claims, DeviceId, Fence, MemoryKind, RawBuffer, Result, Timeline, TimelineId,
    };

    /// A queue whose work is complete when `reached` says so.
    struct Queue {
        id: TimelineId,
        reached: AtomicU64,
    }

    // SAFETY: nothing of it runs.
    unsafe impl Timeline for Queue {
        fn id(&self) -> TimelineId {
            self.id
        }

        fn device(&self) -> DeviceId {
            DeviceId::Cpu
        }

        fn reached(&self) -> u64 {
            self.reached.load(Ordering::Relaxed)
        }

        fn poll(&self, point: u64) -> Result<bool> {
            Ok(self.reached() >= point)
        }

        fn wait(&self, _point: u64) -> Result<()> {
            Ok(())
        }

        fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
            true
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Between {
        Nothing,
        FinishedUse,
        UseFinishedAfterDrop,
    }

    /// Processor time of the calling thread.
    fn processor_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }

    fn rounds(
        backend: &dyn Backend,
        what: (DeviceId, MemoryKind, usize),
        held: usize,
        between: Between,
        rounds: usize,
    ) {
        let queue = Arc::new(Queue { id: transload_core::next_timeline_id(), reached: AtomicU64::new(0) });
        let timeline = Arc::clone(&queue) as Arc<dyn Timeline>;
        let mut point = 0;
        let mut buffers: Vec<RawBuffer> = Vec::with_capacity(held);
        for _ in 0..rounds {
            for _ in 0..held {
                let Ok(buffer) = backend.allocate(what.0, what.1, what.2) else { return };
                if !matches!(between, Between::Nothing) {
                    point += 1;
                    let Ok(claims) = Claims::acquire(&mut [(&buffer, Access::Write)]) else { return };
                    // SAFETY: nothing runs.
                    unsafe { claims.commit(&Fence::new(Arc::clone(&timeline), point)) };
                }
                buffers.push(black_box(buffer));
            }
            if matches!(between, Between::FinishedUse) {
                queue.reached.store(point, Ordering::Relaxed);
            }
            buffers.clear();
            queue.reached.store(point, Ordering::Relaxed);
        }
    }

    pub(crate) fn run() -> Result<()> {
        let mut args = std::env::args().skip(1);
        let scale: usize = args.next().and_then(|text| text.parse().ok()).unwrap_or(20_000);
        let filter = args.next().unwrap_or_default();
        let _only_one = transload_cuda_sim::install();
        let sim = transload_cuda_sim::SimDevice::builder().build();
        let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([sim.ordinal()]))?;
        let device = DeviceId::Cuda(sim.ordinal());
        for (kind, bytes) in [(MemoryKind::Device, 4096), (MemoryKind::Pinned, 4096)] {
            for held in [1, 64] {
                if bytes * held > 1 << 30 {
                    continue;
                }
                for between in [Between::Nothing, Between::FinishedUse, Between::UseFinishedAfterDrop] {
                    for threads in [1, 8] {
                        let label = format!("{kind} {bytes} B, {held} held, {between:?}, {threads} threads");
                        if !label.contains(&filter) {
                            continue;
                        }
                        let mut best = u64::MAX;
                        for _ in 0..5 {
                            let count = scale / held;
                            let start = Barrier::new(threads);
                            let mut slowest = 0;
                            thread::scope(|scope| {
                                let running: Vec<_> = (0..threads)
                                    .map(|_| {
                                        scope.spawn(|| {
                                            rounds(
                                                &*backend,
                                                (device, kind, bytes),
                                                held,
                                                between,
                                                count / 10 + 1,
                                            );
                                            start.wait();
                                            let begun = processor_ns();
                                            rounds(&*backend, (device, kind, bytes), held, between, count);
                                            (processor_ns() - begun) * 10 / (count * held) as u64
                                        })
                                    })
                                    .collect();
                                for thread in running {
                                    slowest = slowest.max(thread.join().unwrap_or(u64::MAX));
                                }
                            });
                            best = best.min(slowest);
                        }
                        println!("{label}: {:.1} ns", best as f64 / 10.0);
                    }
                }
            }
        }
        backend.drain()
    }
}

fn main() {
    #[cfg(any(target_os = "linux", windows))]
    if let Err(error) = timing::run() {
        println!("{error}");
    }
}
