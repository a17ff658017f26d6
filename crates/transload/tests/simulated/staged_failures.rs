//! The failure of a staged transfer is returned by later readers of its destination, until that is written again.

use std::{error::Error as _, sync::mpsc, thread, time::Duration};

use transload::{
    CrossBackendTransferManager, DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Transfer, TransferMethod,
    TransferOptions,
    cpu::CpuBackend,
    cuda::{Access, CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::{SimDevice, harness::Checked};
use transload_memory::CudaDevice;
use transload_streams::{CudaModule, CudaStream, LaunchConfig};

use crate::gate::Gate;

const SAXPY: &str = include_str!("../../../streams/examples/kernels/saxpy.ptx");
const MIB: usize = 1 << 20;
const UNKNOWN: u32 = 999;

struct Setup {
    manager: CrossBackendTransferManager,
    /// Dropped last: checks that everything was released.
    sim: Checked,
}

impl Setup {
    fn new() -> Self {
        transload_cuda_sim::install().unwrap();
        let sim = SimDevice::builder().record_accesses(true).checked();
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        Self { sim, manager }
    }

    fn host(&self, value: u8) -> RawBuffer {
        let buffer = self.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 8 * MIB).unwrap();
        buffer.write().unwrap().fill(value);
        buffer
    }

    fn there(&self) -> RawBuffer {
        self.manager.allocate(DeviceId::Cuda(self.sim.ordinal()), MemoryKind::Device, 8 * MIB).unwrap()
    }

    fn staged(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        let only = TransferOptions::new().only(TransferMethod::HostStaged);
        self.manager.copy(src, dst).options(only).submit()
    }

    /// Asserts that no failure is left unreported.
    fn ends(self, buffers: impl IntoIterator<Item = RawBuffer>) {
        drop(buffers.into_iter().collect::<Vec<_>>());
        self.manager.drain().unwrap();
    }
}

fn within(what: &'static str, scenario: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        scenario();
        done.send(()).unwrap();
    });
    if is_done.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("not over after a minute: {what}");
    }
    thread.join().unwrap();
}

/// Returns whether the error is that of a later reader, with the driver's error as its cause.
fn assert_source_failed(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::SourceFailed, "{error}");
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<Error>());
    assert_eq!(cause.map(Error::kind), Some(ErrorKind::Device), "{error} {:?}", error.source());
}

#[test]
fn copy_after_failed_staged_upload_fails() {
    within("a copy behind an upload of which the third chunk fails", || {
        let setup = Setup::new();
        let (host, there, further) = (setup.host(1), setup.there(), setup.there());
        // Warm: of the copies from now on, the second belongs to the transfer.
        setup.staged(&host, &there).wait().unwrap();
        setup.manager.copy(&there, &further).wait().unwrap();
        let gate = Gate::before(&host);
        setup.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 2, UNKNOWN);
        let up = setup.staged(&host, &there);
        // Submitting may wait for work that its queue cannot wait for.
        let opener = thread::spawn(move || gate.open());
        let behind = setup.manager.copy(&there, &further).submit();
        opener.join().unwrap();
        let error = up.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert_source_failed(&behind.wait().unwrap_err());
        // A successful transfer to both resets them.
        setup.staged(&host, &there).wait().unwrap();
        setup.manager.copy(&there, &further).wait().unwrap();
        setup.ends([host, there, further]);
    });
}

#[test]
fn failed_staged_download_leaves_destination_unreadable() {
    within("views of a destination that is damaged", || {
        let setup = Setup::new();
        let (host, there, back) = (setup.host(1), setup.there(), setup.host(9));
        setup.staged(&host, &there).wait().unwrap();
        setup.staged(&there, &back).wait().unwrap();
        for repair in 0..3 {
            // Of the second chunk, when all of the first one is enqueued: before that nothing is written.
            setup.sim.fail_call(Some("cuMemcpyDtoHAsync_v2"), 10, UNKNOWN);
            let error = setup.staged(&there, &back).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
            assert_source_failed(&back.read().unwrap_err());
            match repair {
                0 => back.assume_written(..).unwrap(),
                1 => drop(setup.staged(&there, &back).wait().unwrap()),
                _ => back.overwrite().unwrap().fill(1),
            }
            assert!(back.read().unwrap().iter().all(|byte| *byte == 1), "repair {repair}");
        }
        setup.ends([host, there, back]);
    });
}

#[test]
fn failed_dropped_staged_upload_is_reported_by_drain() {
    within("a drain after a dropped upload failed", || {
        let setup = Setup::new();
        let (host, there, back) = (setup.host(1), setup.there(), setup.host(9));
        setup.staged(&host, &there).wait().unwrap();
        setup.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 2, UNKNOWN);
        drop(setup.staged(&host, &there));
        assert_eq!(setup.manager.drain().unwrap_err().kind(), ErrorKind::Device);
        setup.manager.drain().unwrap();
        let error = setup.staged(&there, &back).wait().unwrap_err();
        assert_source_failed(&error);
        assert_eq!(back.read().unwrap()[0], 9, "nothing was moved");
        setup.ends([host, there, back]);
    });
}

#[test]
fn launch_after_failed_staged_upload_fails() {
    within("launches that may read what an upload should have written", || {
        let setup = Setup::new();
        let (host, x, y, back) = (setup.host(0), setup.there(), setup.there(), setup.host(0));
        let device = CudaDevice::new(setup.sim.ordinal()).unwrap();
        let (stream, module) =
            (CudaStream::new(&device).unwrap(), CudaModule::from_ptx(&device, SAXPY).unwrap());
        let kernel = module.kernel("transload_saxpy").unwrap();
        let count = (y.len() / 4) as u64;
        for uploaded in [&x, &y] {
            for there in [&x, &y] {
                setup.staged(&host, there).wait().unwrap();
            }
            let gate = Gate::before(&host);
            setup.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 2, UNKNOWN);
            let up = setup.staged(&host, uploaded);
            let launched = thread::scope(|scope| {
                scope.spawn(|| {
                    // Until the launch has claimed both.
                    while [&x, &y].iter().any(|claimed| claimed.in_flight().is_some()) {
                        thread::yield_now();
                    }
                    gate.open();
                });
                // Declared to write y only, which includes reading it.
                let launch = kernel.launch(LaunchConfig::for_elements(count, 128)).arg(1.0_f32);
                // SAFETY: the kernel takes these four parameters, and touches `count` numbers of each buffer.
                unsafe { launch.reads(&x).writes(&y).arg(count).enqueue(&stream) }.unwrap()
            });
            assert_eq!(up.wait().unwrap_err().kind(), ErrorKind::Device);
            assert_source_failed(&launched.wait().unwrap_err());
            assert_source_failed(&setup.staged(&y, &back).wait().unwrap_err());
        }
        drop((stream, kernel, module, device));
        setup.ends([host, x, y, back]);
    });
}

#[test]
fn loans_after_failed_staged_upload_fail() {
    within("uses by other code of what an upload should have written", || {
        let setup = Setup::new();
        let (host, there) = (setup.host(0), setup.there());
        let device = CudaDevice::new(setup.sim.ordinal()).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        setup.staged(&host, &there).wait().unwrap();
        for access in [Access::Read, Access::Write] {
            // While the upload is in flight, the use waits for it.
            let gate = Gate::before(&host);
            setup.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 2, UNKNOWN);
            let up = setup.staged(&host, &there);
            let uses = there.uses();
            let used = thread::scope(|scope| {
                scope.spawn(|| {
                    while there.uses() == uses {
                        thread::yield_now();
                    }
                    gate.open();
                });
                stream.use_buffer(&there, access).map(drop)
            });
            assert_source_failed(&used.unwrap_err());
            assert_eq!(up.wait().unwrap_err().kind(), ErrorKind::Device);
            assert_source_failed(&stream.use_buffer(&there, access).unwrap_err());
            let later = pollster::block_on(stream.use_buffer_async(&there, access));
            assert_source_failed(&later.unwrap_err());
            #[cfg(feature = "dlpack")]
            for read_only in [true, false] {
                let export = transload::dlpack::Export::of::<u8>(&there).for_stream(&stream);
                let export = if read_only { export.read_only() } else { export };
                assert_source_failed(&export.versioned().unwrap_err());
            }
            // For callers that replace all of it.
            there.assume_written(..).unwrap();
            stream.use_buffer(&there, access).unwrap().end().unwrap();
            setup.staged(&host, &there).wait().unwrap();
        }
        drop((stream, device));
        setup.ends([host, there]);
    });
}
