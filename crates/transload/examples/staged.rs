//! Rates of staged transfers, alone and beside others: for comparing two versions of the library on one machine.
//!
//!     cargo run --release -p transload --features cuda --example staged [-- --simulated] [--fresh]
#![allow(clippy::unwrap_used, reason = "a program of a few lines")]

#[cfg(any(target_os = "linux", windows))]
mod staged {
    use std::{
        any::Any,
        sync::{Arc, Condvar, Mutex},
        task::Waker,
        time::{Duration, Instant},
    };

    use transload::{
        CrossBackendTransferManager, DeviceId, Error, MemoryKind, RawBuffer, Result, Transfer,
        TransferMethod, TransferOptions, cpu::CpuBackend, cuda::CudaBackend,
    };
    use transload_core::{Access, Claims, Fence, Timeline, TimelineId, next_timeline_id};

    const MIB: usize = 1 << 20;

    /// Work that completes when `open` is called.
    struct Gate {
        id: TimelineId,
        state: Mutex<(bool, Vec<Waker>)>,
        opened: Condvar,
    }

    impl Gate {
        fn open(&self) {
            let mut state = self.state.lock().unwrap();
            state.0 = true;
            let wakers = std::mem::take(&mut state.1);
            drop(state);
            self.opened.notify_all();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    // SAFETY: there is no work behind its point.
    unsafe impl Timeline for Gate {
        fn id(&self) -> TimelineId {
            self.id
        }

        fn device(&self) -> DeviceId {
            DeviceId::Cpu
        }

        fn reached(&self) -> u64 {
            u64::from(self.state.lock().unwrap().0)
        }

        fn poll(&self, _: u64) -> Result<bool> {
            Ok(self.state.lock().unwrap().0)
        }

        fn wait(&self, _: u64) -> Result<()> {
            let mut state = self.state.lock().unwrap();
            while !state.0 {
                state = self.opened.wait(state).unwrap();
            }
            Ok(())
        }

        fn wake_at(&self, _: u64, waker: &Waker) -> bool {
            let mut state = self.state.lock().unwrap();
            if !state.0 {
                state.1.push(waker.clone());
            }
            state.0
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    struct Bench {
        manager: CrossBackendTransferManager,
        options: TransferOptions,
    }

    impl Bench {
        fn start(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
            self.manager.copy(src, dst).options(self.options).submit()
        }

        fn host(&self, bytes: usize) -> Result<RawBuffer> {
            let buffer = self.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?;
            buffer.write()?.fill(1);
            Ok(buffer)
        }

        fn there(&self, device: DeviceId, bytes: usize) -> Result<RawBuffer> {
            self.manager.allocate(device, MemoryKind::Device, bytes)
        }
    }

    /// Prints the median, fastest and slowest rate of the repetitions, after two warm-up runs.
    fn rate(name: &str, bytes: usize, mut once: impl FnMut() -> Result<()>) -> Result<()> {
        let repetitions = if bytes < 100 * MIB { 60 } else { 15 };
        (0..2).try_for_each(|_| once())?;
        let mut times = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            let begun = Instant::now();
            once()?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let rates: Vec<f64> = [repetitions / 2, 0, repetitions - 1]
            .map(|at| bytes as f64 / times.get(at).map_or(f64::NAN, Duration::as_secs_f64) / 1e9)
            .to_vec();
        println!("{name:58} {:6.2} GB/s (best {:6.2}, worst {:6.2})", rates[0], rates[1], rates[2]);
        Ok(())
    }

    /// Copies into untouched host memory, then into the same memory again; prints the medians.
    fn fresh(bench: &Bench, near: DeviceId) -> Result<()> {
        let cpu = CpuBackend::new()?;
        let ways = [
            ("device → host", TransferMethod::HostStaged, near),
            ("host → host", TransferMethod::DirectCopy, DeviceId::Cpu),
        ];
        for (name, method, device) in ways {
            let options = TransferOptions::new().only(method);
            for (mib, is_vec) in
                [4, 8, 16, 48, 256].map(|mib| (mib, false)).into_iter().chain([(48, true), (256, true)])
            {
                let src = if device.is_cpu() {
                    bench.host(mib * MIB)?
                } else {
                    let src = bench.there(device, mib * MIB)?;
                    bench.start(&bench.host(mib * MIB)?, &src).wait()?;
                    src
                };
                let mut times = [Vec::new(), Vec::new()];
                for _ in 0..31 {
                    let dst = if is_vec {
                        cpu.wrap_vec(vec![0_u8; mib * MIB])
                    } else {
                        bench.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, mib * MIB)?
                    };
                    for times in &mut times {
                        let begun = Instant::now();
                        bench.manager.copy(&src, &dst).options(options).wait()?;
                        times.push(begun.elapsed());
                    }
                    assert!(dst.read()?.iter().all(|byte| *byte == 1));
                }
                let [fresh, touched] = times.map(|mut times| {
                    times.sort_unstable();
                    (mib * MIB) as f64 / times[15].as_secs_f64() / 1e9
                });
                let kind = if is_vec { "vector" } else { "allocated" };
                println!("{name} {mib:4} MiB, {kind}: fresh {fresh:6.2} GB/s, touched {touched:6.2} GB/s");
            }
        }
        Ok(())
    }

    pub(crate) fn run() -> Result<()> {
        let simulated = std::env::args().any(|argument| argument == "--simulated");
        if simulated {
            transload_cuda_sim::install().map_err(|error| {
                Error::caused_by(transload::ErrorKind::NoDriver, "installing the software driver", error)
            })?;
            for _ in 0..2 {
                let _device = transload_cuda_sim::SimDevice::builder().build();
            }
            println!("simulated: these rates are of the host alone");
        }
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new()?)?;
        manager.register_backend(CudaBackend::open(&transload::cuda::CudaBackendConfig::default())?)?;
        let devices: Vec<DeviceId> =
            manager.devices().iter().map(|device| device.id).filter(|id| !id.is_cpu()).collect();
        let (near, far) = (devices[0], *devices.last().unwrap());
        let bench = Bench { manager, options: TransferOptions::new().only(TransferMethod::HostStaged) };

        if std::env::args().any(|argument| argument == "--fresh") {
            return fresh(&bench, near);
        }
        // Simulated devices have less memory.
        let sizes: &[usize] = if simulated { &[1, 3, 16, 48] } else { &[1, 3, 16, 48, 256, 700] };
        for &mib in sizes {
            let bytes = mib * MIB;
            let (host, there) = (bench.host(bytes)?, bench.there(near, bytes)?);
            let up = || bench.start(&host, &there);
            let down = || bench.start(&there, &host);
            rate(&format!("up {mib} MiB, wait"), bytes, || up().wait().map(drop))?;
            rate(&format!("up {mib} MiB, await"), bytes, || pollster::block_on(up()).map(drop))?;
            rate(&format!("down {mib} MiB, wait"), bytes, || down().wait().map(drop))?;
            rate(&format!("down {mib} MiB, await"), bytes, || pollster::block_on(down()).map(drop))?;
        }

        for (count, mib) in [(1, 128), (8, 16), (64, 2)] {
            let pairs: Vec<_> = (0..count)
                .map(|_| Ok((bench.host(mib * MIB)?, bench.there(near, mib * MIB)?)))
                .collect::<Result<_>>()?;
            for direction in ["up", "down"] {
                rate(&format!("{direction} {count} of {mib} MiB at once"), count * mib * MIB, || {
                    let transfers: Vec<_> = pairs
                        .iter()
                        .map(|(host, there)| match direction {
                            "up" => bench.start(host, there),
                            _ => bench.start(there, host),
                        })
                        .collect();
                    transfers.into_iter().try_for_each(|transfer| transfer.wait().map(drop))
                })?;
            }
        }

        // With a version whose threads block, this does not return: set a time limit.
        let (host, there) = (bench.host(64 * MIB)?, bench.there(far, 64 * MIB)?);
        let name = format!("up 64 MiB to {far}");
        rate(&format!("{name}, alone"), host.len(), || {
            pollster::block_on(bench.start(&host, &there)).map(drop)
        })?;
        let source = bench.there(near, 2 * MIB)?;
        let gate = Arc::new(Gate { id: next_timeline_id(), state: Mutex::default(), opened: Condvar::new() });
        let claims = Claims::acquire(&mut [(&source, Access::Write)])?;
        // SAFETY: no work touches the range, and none came before it.
        unsafe { claims.commit(&Fence::new(Arc::clone(&gate) as Arc<dyn Timeline>, 1)) };
        let waiting: Vec<_> = (0..40)
            .map(|_| {
                let back = bench.host(2 * MIB)?;
                Ok((bench.start(&source, &back), back))
            })
            .collect::<Result<_>>()?;
        rate(&format!("{name}, beside 40 that wait on {near}"), host.len(), || {
            pollster::block_on(bench.start(&host, &there)).map(drop)
        })?;
        gate.open();
        waiting.into_iter().try_for_each(|(transfer, _)| transfer.wait().map(drop))?;
        drop((host, there, source));
        bench.manager.drain()
    }
}

#[cfg(any(target_os = "linux", windows))]
fn main() -> transload::Result<()> {
    staged::run()
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() {}
