//! The transfer manager with the host and a CUDA device, on the software driver and on a real one
//! (`TRANSLOAD_TEST_DRIVER=real`): content, order, lifetime, errors, statistics, and driver calls.

use std::sync::Arc;

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, Sampling, StreamPriority,
    TransferMethod, TransferOptions,
    backend::SizeClass,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
pub(crate) use transload_cuda_sim::harness::noise;
use transload_cuda_sim::harness::{self, EndCheck, TestDevice};

pub(crate) struct Setup {
    pub(crate) test: TestDevice,
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) device: DeviceId,
    /// Dropped last.
    pub(crate) _end: EndCheck,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::sampling(Sampling::default())
    }

    fn sampling(sampling: Sampling) -> Self {
        let test = harness::device();
        let manager = CrossBackendTransferManager::builder().sampling(sampling).build();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        Self { test, manager, device: DeviceId::Cuda(test.ordinal()), _end: test.end_check() }
    }

    pub(crate) fn allocate(&self, kind: MemoryKind, bytes: usize) -> RawBuffer {
        let device = if kind == MemoryKind::Pageable { DeviceId::Cpu } else { self.device };
        self.manager.allocate_for(device, kind, bytes).unwrap()
    }

    pub(crate) fn filled(&self, kind: MemoryKind, content: &[u8]) -> RawBuffer {
        let buffer = self.allocate(kind, content.len());
        buffer.write().unwrap().copy_from_slice(content);
        buffer
    }
}

/// Every test ends with this: after a drain, nothing is alive and nothing raced.
impl Drop for Setup {
    fn drop(&mut self) {
        // A failed test has already reported its cause.
        if std::thread::panicking() {
            return;
        }
        let manager = std::mem::take(&mut self.manager);
        manager.drain().unwrap();
        for (name, ledger) in manager.resource_counts() {
            assert!(ledger.is_empty(), "{name}: {ledger}");
        }
    }
}

const HOST_KINDS: [MemoryKind; 3] = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];

#[test]
fn every_pair_of_places_moves_exactly_the_bytes_asked_for() {
    let setup = Setup::new();
    for near in HOST_KINDS {
        for far in [MemoryKind::Device, MemoryKind::Unified] {
            for (seed, size) in [1, 4097, 300_001].into_iter().enumerate() {
                let content = noise(size + 100, seed as u64);
                let source = setup.filled(near, &content);
                let there = setup.allocate(far, size + 50);
                let again = setup.allocate(far, size + 50);
                let back = setup.filled(near, &vec![0xEE; size + 100]);
                let up = setup.manager.transfer_buffer(&source, &there, 31, 7, size);
                let within = setup.manager.transfer_buffer(&there, &again, 7, 9, size);
                let down = setup.manager.transfer_buffer(&again, &back, 9, 13, size);
                for (transfer, lane) in [(down, setup.device), (within, setup.device), (up, setup.device)] {
                    let report = transfer.wait().unwrap();
                    assert_eq!((report.bytes, report.lane), (size as u64, lane));
                    assert_eq!(report.simulated, setup.test.is_simulated());
                }
                let seen = back.read().unwrap();
                assert!(seen[13..13 + size] == content[31..31 + size], "{near} → {far}, {size} bytes");
                assert!(
                    seen[..13].iter().chain(&seen[13 + size..]).all(|byte| *byte == 0xEE),
                    "{near} → {far}"
                );
            }
        }
    }
}

#[test]
fn a_plan_says_what_the_transfer_then_does() {
    let setup = Setup::new();
    let device = Place::new(setup.device, MemoryKind::Device);
    for near in HOST_KINDS {
        let host = Place::new(DeviceId::Cpu, near);
        let (source, there) = (setup.filled(near, &[1; 5000]), setup.allocate(MemoryKind::Device, 5000));
        let plan = setup.manager.plan(host, device, 5000, &TransferOptions::new()).unwrap();
        let report = setup.manager.copy(&source, &there).wait().unwrap();
        assert!(plan.agrees_with(&report), "{plan}\n{report}");
        assert_eq!(report.path.src, host);
        assert_eq!(report.rejected.len(), plan.rejected.len());
    }
}

#[test]
fn automatic_choice_sends_pinned_memory_by_one_copy() {
    let setup = Setup::new();
    let (source, there) =
        (setup.filled(MemoryKind::Pinned, &[1; 10_000]), setup.allocate(MemoryKind::Device, 10_000));
    // The first transfer creates streams and events.
    setup.manager.copy(&source, &there).wait().unwrap();
    setup.manager.copy(&source, &there).wait().unwrap();
    let trace = transload_cuda_sys::trace::start();
    let transfer = setup.manager.copy(&source, &there).submit();
    let calls = trace.calls_of_this_thread();
    let moved: Vec<_> = calls.iter().filter(|call| call.name.starts_with("cuMem")).collect();
    assert_eq!(moved.len(), 1, "{calls:?}");
    assert_eq!(moved[0].name, "cuMemcpyHtoDAsync_v2");
    assert_eq!(
        moved[0].arguments[..3],
        [there.device_address().unwrap(), source.host_address().unwrap().as_ptr().addr() as u64, 10_000]
    );
    assert!(
        calls.iter().all(|call| !call.name.contains("Synchronize")),
        "submission does not wait: {calls:?}"
    );
    assert_eq!(transfer.wait().unwrap().method, TransferMethod::DirectCopy);
}

#[test]
fn a_transfer_goes_on_a_stream_of_its_priority() {
    let setup = Setup::new();
    let (source, there) =
        (setup.filled(MemoryKind::Pinned, &[1; 100]), setup.allocate(MemoryKind::Device, 100));
    let stream_of = |priority| {
        let trace = transload_cuda_sys::trace::start();
        let options = TransferOptions::new().priority(priority);
        setup.manager.copy(&source, &there).options(options).wait().unwrap();
        let calls = trace.calls_of_this_thread();
        calls.iter().find(|call| call.name == "cuMemcpyHtoDAsync_v2").unwrap().arguments[3]
    };
    let (high, low) = (stream_of(StreamPriority::High), stream_of(StreamPriority::Low));
    assert_ne!(high, low);
    let priority = |stream: u64| {
        let mut priority = i32::MAX;
        let handle = std::ptr::with_exposed_provenance_mut(stream as usize);
        let context = transload_cuda_sys::Context::primary(
            transload_cuda_sys::Device::new(setup.device.ordinal()).unwrap(),
        )
        .unwrap();
        let _bound = context.enter().unwrap();
        // SAFETY: the stream belongs to the manager's backend, which lives.
        assert_eq!(unsafe { transload_cuda_sys::ffi::cuStreamGetPriority(handle, &mut priority) }, 0);
        priority
    };
    assert!(priority(high) < priority(low), "the driver confirms that smaller is more urgent");
}

#[test]
fn two_transfers_overlap_in_any_await_order() {
    let setup = Setup::new();
    let content = noise(2 << 20, 1);
    let source = setup.filled(MemoryKind::Pinned, &content);
    let (one, two) =
        (setup.allocate(MemoryKind::Device, 2 << 20), setup.allocate(MemoryKind::Device, 2 << 20));
    let back = setup.allocate(MemoryKind::Pinned, 2 << 20);
    pollster::block_on(async {
        let first = setup.manager.copy(&source, &one).submit();
        let second = setup.manager.copy(&source, &two).submit();
        second.await.unwrap();
        first.await.unwrap();
        setup.manager.copy(&two, &back).submit().await.unwrap();
    });
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn everything_dropped_early_still_arrives_and_nothing_leaks() {
    let setup = Setup::new();
    let content = noise(1 << 20, 2);
    let there = setup.allocate(MemoryKind::Device, 1 << 20);
    for kind in HOST_KINDS {
        let source = setup.filled(kind, &content);
        drop(setup.manager.copy(&source, &there).submit());
        drop(source);
        let back = setup.allocate(MemoryKind::Pageable, 1 << 20);
        setup.manager.copy(&there, &back).wait().unwrap();
        assert!(*back.read().unwrap() == content[..], "{kind}");
    }
}

#[test]
fn bad_requests_move_nothing_and_leave_the_manager_usable() {
    let setup = Setup::new();
    let (source, there) =
        (setup.filled(MemoryKind::Pinned, &[9; 100]), setup.allocate(MemoryKind::Device, 100));
    let poison = setup.filled(MemoryKind::Pinned, &[0xEE; 100]);
    setup.manager.copy(&poison, &there).wait().unwrap();
    for (src_offset, dst_offset, size, kind) in [
        (0, 0, 0, ErrorKind::InvalidArgument),
        (1, 0, 100, ErrorKind::OutOfRange),
        (0, 1, 100, ErrorKind::OutOfRange),
        (usize::MAX, 0, 2, ErrorKind::OutOfRange),
        (0, usize::MAX - 1, 3, ErrorKind::OutOfRange),
        (101, 0, 1, ErrorKind::OutOfRange),
    ] {
        let refused = setup.manager.transfer_buffer(&source, &there, src_offset, dst_offset, size);
        assert_eq!(refused.wait().unwrap_err().kind(), kind, "{src_offset} {dst_offset} {size}");
    }
    let overlap = setup.manager.transfer_buffer(&there, &there, 0, 40, 60);
    assert_eq!(overlap.wait().unwrap_err().kind(), ErrorKind::Overlap);
    let elsewhere = CpuBackend::new().unwrap().wrap_vec(vec![1_u8; 100]);
    setup.manager.copy(&elsewhere, &there.slice(..100).unwrap()).wait().unwrap();
    setup.manager.copy(&poison, &there).wait().unwrap();
    let only = TransferOptions::new().only(TransferMethod::PeerToPeer);
    let refused = setup.manager.copy(&source, &there).options(only).submit();
    assert_eq!(refused.wait().unwrap_err().kind(), ErrorKind::Unsupported);
    let unknown = Place::new(DeviceId::Cuda(u32::MAX), MemoryKind::Device);
    let error = setup.manager.plan(source.place(), unknown, 1, &TransferOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    setup.manager.copy(&there, &source).wait().unwrap();
    assert_eq!(*source.read().unwrap(), [0xEE; 100], "what was refused moved nothing");
}

#[test]
fn read_only_memory_is_a_source_and_no_destination() {
    let setup = Setup::new();
    let content: Arc<[u8]> = noise(5000, 7).into();
    let fixed = CpuBackend::new().unwrap().wrap_readonly(Arc::clone(&content));
    let there = setup.allocate(MemoryKind::Device, 5000);
    setup.manager.copy(&fixed, &there).wait().unwrap();
    assert_eq!(setup.manager.copy(&there, &fixed).wait().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let back = setup.allocate(MemoryKind::Pinned, 5000);
    setup.manager.copy(&there, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
}

#[test]
fn measured_transfers_report_device_time_and_statistics() {
    let setup = Setup::sampling(Sampling::Every(1));
    let source = setup.filled(MemoryKind::Pinned, &vec![1; 2 << 20]);
    let there = setup.allocate(MemoryKind::Device, 2 << 20);
    for size in [100, 100, 2 << 20] {
        let report = setup.manager.transfer_buffer(&source, &there, 0, 0, size).wait().unwrap();
        let moving = report.moving.unwrap();
        let elapsed = report.elapsed.unwrap();
        assert!(moving <= elapsed, "device time {moving:?} within host time {elapsed:?}");
    }
    let path = transload::backend::TransferPath::new(source.place(), there.place());
    let small = &setup.manager.stats_for(path, SizeClass::UpTo4KiB)[0];
    assert_eq!((small.transfers, small.bytes, small.measured, small.failures), (2, 200, 2, 0));
    let large = &setup.manager.stats_for(path, SizeClass::UpTo16MiB)[0];
    assert_eq!((large.transfers, large.bytes), (1, 2 << 20));
    assert!(large.best_rate.unwrap() >= large.average_rate().unwrap() * 0.999);
    assert_eq!(setup.manager.get_transfer_stats().len(), 2);
}
