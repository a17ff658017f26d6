//! Casts with failing driver calls, without memory, and between two devices.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use transload::{
    CrossBackendTransferManager, DeviceId, Error, ErrorKind, FloatType, ListWay, MemoryKind, RawBuffer,
    Result, TransferMethod, TransferOptions,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_core::{Access, Claims};
use transload_cuda_sim::{SimDevice, SimDeviceBuilder, harness};

use crate::{
    setup::{Setup, noise},
    stream_gate::within,
};

const OUT_OF_MEMORY: u32 = 2;
const UNKNOWN: u32 = 999;
const WIDE: FloatType = FloatType::F32;
const NARROW: FloatType = FloatType::Bf16;
/// Three chunks of `f32`.
const LONG: usize = (16 << 20) + 5;

fn manager(sim: SimDevice) -> Result<CrossBackendTransferManager> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    Ok(manager)
}

/// Elements of the host, their memory on the device, and where they come back.
struct Casts {
    source: RawBuffer,
    there: RawBuffer,
    back: RawBuffer,
}

impl Casts {
    fn new(
        manager: &CrossBackendTransferManager,
        sim: SimDevice,
        kind: MemoryKind,
        elements: usize,
    ) -> Result<Self> {
        let allocate =
            |kind, bytes| manager.allocate_for(DeviceId::Cuda(sim.ordinal()), kind, bytes * elements);
        let host = |bytes| match kind {
            MemoryKind::Pageable => manager.allocate(DeviceId::Cpu, kind, bytes * elements),
            _ => allocate(kind, bytes),
        };
        let (source, back) = (host(4)?, host(4)?);
        source.write()?.chunks_mut(4).zip(0_usize..).for_each(|(element, at)| {
            element.copy_from_slice(&f32::from(at as u8 % 250).to_le_bytes());
        });
        Ok(Self { source, there: allocate(MemoryKind::Device, 2)?, back })
    }

    /// Small numbers: no bit is lost on the way.
    fn are_back(&self) -> Result<bool> {
        Ok(*self.back.read()? == *self.source.read()?)
    }
}

fn driver_error(error: &Error) -> Option<ErrorKind> {
    error.cause().and_then(|cause| cause.downcast_ref::<Error>()).map(Error::kind)
}

#[test]
fn each_failing_call_is_an_error_without_race_or_leak() {
    let _alone = crate::alone_with_drop_errors();
    let kinds = [ErrorKind::Device, ErrorKind::OutOfMemory, ErrorKind::Unsupported, ErrorKind::SourceFailed];
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let runs = harness::fail_each_call(
            |builder| builder,
            &[UNKNOWN, OUT_OF_MEMORY],
            &kinds,
            |sim| {
                let manager = manager(sim)?;
                let outcome = Casts::new(&manager, sim, kind, 70_000).and_then(|casts| {
                    let up = manager.cast((&casts.source, WIDE), (&casts.there, NARROW)).submit();
                    let down = manager.cast((&casts.there, NARROW), (&casts.back, WIDE)).submit();
                    let (up, down) = (up.wait(), down.wait());
                    up.and(down)?;
                    casts.are_back()
                });
                // The fault may hit the drain itself, once.
                let (first, second) = (manager.drain(), manager.drain());
                assert!(first.is_ok() || second.is_ok(), "{second:?}");
                assert!(outcome?, "other elements came back");
                Ok(())
            },
        );
        assert!(runs > 20, "the scenario makes more calls than {runs}");
    }
}

#[test]
fn failure_in_the_middle_marks_the_destination() {
    transload_cuda_sim::install().unwrap();
    // The third chunk's first step comes after the first chunk's second one.
    for (is_up, call, nth) in [(true, "cuMemcpyHtoDAsync_v2", 3), (false, "cuLaunchKernel", 3)] {
        let sim = SimDevice::builder().record_accesses(true).total_memory(512 << 20).build();
        let manager = manager(sim).unwrap();
        let casts = Casts::new(&manager, sim, MemoryKind::Pinned, LONG).unwrap();
        let up = || manager.cast((&casts.source, WIDE), (&casts.there, NARROW));
        let down = || manager.cast((&casts.there, NARROW), (&casts.back, WIDE));
        up().wait().unwrap();
        down().wait().unwrap();
        let probe = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, casts.there.len()).unwrap();
        sim.fail_call(Some(call), nth, UNKNOWN);
        let failed = if is_up { up() } else { down() }.wait().unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Device, "{failed}");
        let later = match is_up {
            true => manager.copy(&casts.there, &probe).wait().unwrap_err(),
            false => casts.back.read().unwrap_err(),
        };
        assert_eq!((later.kind(), driver_error(&later)), (ErrorKind::SourceFailed, Some(ErrorKind::Device)));
        // Written again, they are valid.
        up().wait().unwrap();
        down().wait().unwrap();
        assert!(casts.are_back().unwrap());
        drop((casts, probe));
        manager.drain().unwrap();
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
        assert!(manager.resource_counts().iter().all(|(_, counts)| counts.is_empty()));
    }
}

#[test]
fn failure_in_the_middle_of_a_task_blocks_no_thread() {
    within(Duration::from_secs(60), || {
        transload_cuda_sim::install().unwrap();
        let sim = SimDevice::builder().total_memory(512 << 20).build();
        let manager = manager(sim).unwrap();
        let casts = Casts::new(&manager, sim, MemoryKind::Pinned, LONG).unwrap();
        let up = || manager.cast((&casts.source, WIDE), (&casts.there, NARROW));
        up().wait().unwrap();
        // Claimed by this thread until the cast has failed, before it comes to these bytes.
        let end = casts.there.slice(2 * LONG - 2..).unwrap();
        let mut claims = Some(Claims::acquire(&mut [(&end, Access::Read)]).unwrap());
        let trace = transload_cuda_sys::trace::start();
        sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 3, UNKNOWN);
        let mut cast = pin!(up().into_future());
        let mut context = Context::from_waker(Waker::noop());
        let failed = loop {
            if let std::task::Poll::Ready(outcome) = cast.as_mut().poll(&mut context) {
                break outcome.unwrap_err();
            }
            if trace.calls().iter().filter(|call| call.name == "cuMemcpyHtoDAsync_v2").count() > 2 {
                claims = None;
            }
            thread::yield_now();
        };
        assert_eq!(failed.kind(), ErrorKind::Device, "{failed}");
        assert!(claims.is_none(), "the mark covers what is claimed");
        let probe = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, end.len()).unwrap();
        let later = manager.copy(&end, &probe).wait().unwrap_err();
        assert_eq!(later.kind(), ErrorKind::SourceFailed);
    });
}

#[test]
fn failed_first_step_leaves_the_destination_alone() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let manager = manager(sim).unwrap();
    let casts = Casts::new(&manager, sim, MemoryKind::Pinned, 100).unwrap();
    manager.cast((&casts.source, WIDE), (&casts.there, NARROW)).wait().unwrap();
    casts.back.write().unwrap().fill(7);
    sim.fail_call(Some("cuLaunchKernel"), 1, UNKNOWN);
    drop(manager.cast((&casts.there, NARROW), (&casts.back, WIDE)).submit());
    let unseen = manager.drain().unwrap_err();
    assert_eq!(unseen.kind(), ErrorKind::Device, "{unseen}");
    assert!(casts.back.read().unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn refused_last_step_leaves_the_destination_alone() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let manager = manager(sim).unwrap();
    let casts = Casts::new(&manager, sim, MemoryKind::Pinned, 100).unwrap();
    let up = || manager.cast((&casts.source, WIDE), (&casts.there, NARROW)).wait();
    let down = || manager.cast((&casts.there, NARROW), (&casts.back, WIDE)).wait();
    up().unwrap();
    casts.back.write().unwrap().fill(7);
    // The copy after the cast, and the cast after the copy.
    sim.fail_call(Some("cuMemcpyDtoHAsync_v2"), 1, UNKNOWN);
    assert_eq!(down().unwrap_err().kind(), ErrorKind::Device);
    assert!(casts.back.read().unwrap().iter().all(|byte| *byte == 7));
    sim.fail_call(Some("cuLaunchKernel"), 1, UNKNOWN);
    assert_eq!(up().unwrap_err().kind(), ErrorKind::Device);
    down().unwrap();
    assert!(casts.are_back().unwrap());
}

#[test]
fn failed_staged_copy_marks_what_is_cast_from_it() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().record_accesses(true).build();
    let manager = manager(sim).unwrap();
    let casts = Casts::new(&manager, sim, MemoryKind::Pageable, 1 << 20).unwrap();
    let staged = TransferOptions::new().only(TransferMethod::HostStaged);
    let up = || manager.cast((&casts.source, WIDE), (&casts.there, NARROW)).options(staged);
    let report = up().wait().unwrap();
    assert_eq!(report.copied.unwrap().method, TransferMethod::HostStaged);
    sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
    let (failed, behind) =
        (up().submit(), manager.cast((&casts.there, NARROW), (&casts.back, WIDE)).submit());
    let failed = failed.wait().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Device, "{failed}");
    let behind = behind.wait().unwrap_err();
    assert_eq!((behind.kind(), driver_error(&behind)), (ErrorKind::SourceFailed, Some(ErrorKind::Device)));
    // One whose handle is dropped is reported by the drain.
    sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
    drop(up().submit());
    assert!(manager.drain().is_err());
    up().wait().unwrap();
    manager.cast((&casts.there, NARROW), (&casts.back, WIDE)).wait().unwrap();
    assert!(casts.are_back().unwrap());
    drop(casts);
    manager.drain().unwrap();
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}

#[test]
fn cast_without_scratch_memory_is_out_of_memory() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(5 << 20).build();
    let manager = manager(sim).unwrap();
    let casts = Casts::new(&manager, sim, MemoryKind::Pinned, 1 << 20).unwrap();
    let error = manager.cast((&casts.source, WIDE), (&casts.there, NARROW)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    drop(casts);
    manager.drain().unwrap();
    assert!(manager.resource_counts().iter().all(|(_, counts)| counts.is_empty()));
}

#[test]
fn link_between_devices_carries_the_narrower_type() {
    const ELEMENTS: usize = 50_001;
    let Some(devices) = harness::devices(2) else { return };
    let setup = Setup::over(devices.try_into().unwrap_or_else(|_| panic!("two devices")));
    let content = noise(2 * ELEMENTS, 1);
    let narrow = setup.filled(0, &content);
    let (wide, again) = (setup.on(1, 4 * ELEMENTS), setup.on(0, 2 * ELEMENTS));
    for (src, dst, lane) in [
        ((&narrow, NARROW), (&wide, WIDE), setup.devices[1]),
        ((&wide, WIDE), (&again, NARROW), setup.devices[1]),
    ] {
        let report = setup.manager.cast(src, dst).wait().unwrap();
        assert_eq!((report.lane, report.copied.unwrap().bytes), (lane, 2 * ELEMENTS as u64));
    }
    let mut expected = vec![0; 4 * ELEMENTS];
    NARROW.cast(&content, WIDE, &mut expected);
    assert!(setup.content(&wide) == expected);
    drop((narrow, wide, again));
    setup.finish();
}

/// What is staged would keep queues of lists waiting for threads of the host, which they cannot.
#[test]
fn casts_between_devices_without_access_leave_the_scratch_memory_of_lists() {
    const PIECES: usize = 256;
    let Some(setup) = crate::peers::pair(SimDeviceBuilder::no_peers) else { return };
    let used = || {
        let counts = setup.manager.resource_counts();
        let (_, counts) = counts.into_iter().find(|(name, _)| *name == "cuda").unwrap();
        counts.bytes - counts.cached_bytes
    };
    let bytes = PIECES * 4096;
    let (wide, narrow) = (setup.filled(0, &noise(bytes, 3)), setup.on(1, bytes / 2));
    let pinned = setup.manager.allocate_for(setup.devices[0], MemoryKind::Pinned, bytes).unwrap();
    let before = used();
    setup.manager.cast((&wide, WIDE), (&narrow, NARROW)).wait().unwrap();
    let cast = used() - before;
    assert!(cast > 0, "nothing is kept");
    let pieces: Vec<_> = (0..PIECES)
        .map(|at| {
            let part = |of: &RawBuffer, at: usize| of.slice(at * 4096..(at + 1) * 4096).unwrap();
            (part(&wide, at * 7 % PIECES), part(&pinned, at))
        })
        .collect();
    let report = setup.manager.copy_many(&pieces).way(ListWay::ThroughDevice).wait().unwrap();
    assert!(report.groups[0].through_device, "{report:#}");
    assert!(used() - before > cast, "the list used what the cast did");
    drop((wide, narrow, pinned, pieces));
    setup.finish();
}
