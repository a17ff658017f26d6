//! Guarantees of the migration counters, on the simulated driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`). A
//! process of its own: CUPTI must be loaded before the first context, and has one user.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use std::sync::{Mutex, MutexGuard};

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_cuda_sys::{AsStream as _, Stream, StreamOptions, check, ffi};
use transload_memory::{CudaDevice, CudaMemoryManager, MigrationTracker};

/// Tests of this file take turns: a tracker counts what happens anywhere in the process.
static TURN: Mutex<()> = Mutex::new(());

struct Setup {
    test: TestDevice,
    device: CudaDevice,
    memory: CudaMemoryManager,
    stream: Stream,
    tracker: MigrationTracker,
    _turn: MutexGuard<'static, ()>,
}

impl Setup {
    /// `None`, with a line that says why, if there are no counters.
    fn new() -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let test = harness::device();
        let device = CudaDevice::new(test.ordinal()).unwrap();
        let tracker = match MigrationTracker::start(&device) {
            Ok(tracker) => tracker,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("unavailable"), "{error}");
                assert!(!test.is_simulated(), "the software driver counts: {error}");
                println!("skipped: {error}");
                return None;
            }
        };
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = Stream::new(device.context().unwrap(), StreamOptions::default()).unwrap();
        Some(Self { test, device, memory, stream, tracker, _turn: turn })
    }

    /// Unified memory that lies on the host.
    fn written(&self, bytes: usize) -> RawBuffer {
        let buffer = self.memory.allocate(MemoryKind::Unified, bytes).unwrap();
        buffer.write().unwrap().fill(1);
        buffer
    }

    /// A completed prefetch. `None` means the host.
    fn prefetch(&self, buffer: &RawBuffer, to: Option<u32>) {
        let to = to.map_or(-1, |ordinal| i32::try_from(ordinal).unwrap());
        let _bound = self.device.context().unwrap().enter().unwrap();
        let address = buffer.device_address().unwrap();
        // SAFETY: the range is managed memory without another user, and the stream is waited for.
        check("prefetch", unsafe {
            ffi::cuMemPrefetchAsync(address, buffer.len(), to, self.stream.as_raw())
        })
        .unwrap();
        self.stream.synchronize().unwrap();
    }

    /// Device work that touches every byte: a fill.
    fn touch_on_the_device(&self, buffer: &RawBuffer) {
        let _bound = self.device.context().unwrap().enter().unwrap();
        let address = buffer.device_address().unwrap();
        // SAFETY: the range is managed memory without another user, and the stream is waited for.
        check("fill", unsafe { ffi::cuMemsetD8Async(address, 7, buffer.len(), self.stream.as_raw()) })
            .unwrap();
        self.stream.synchronize().unwrap();
    }

    fn finish(self) {
        let Self { test, device, memory, stream, tracker, _turn } = self;
        drop((tracker, stream));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop((memory, device));
        test.assert_no_live_objects();
    }
}

const MIB: usize = 1 << 20;

#[test]
fn prefetch_counts_its_bytes_and_avoids_faults() {
    let Some(setup) = Setup::new() else { return };
    let buffer = setup.written(8 * MIB);
    setup.tracker.reset().unwrap();
    setup.prefetch(&buffer, Some(setup.device.ordinal()));
    let there = setup.tracker.counts(&buffer).unwrap();
    assert_eq!((there.bytes_to_device, there.bytes_to_host), (8 * MIB as u64, 0), "{there}");
    assert!(there.to_device > 0 && there.is_without_faults(), "{there}");
    setup.touch_on_the_device(&buffer);
    let touched = setup.tracker.counts(&buffer).unwrap();
    assert_eq!(touched, there, "what lies there is used without a fault and without moving");
    setup.prefetch(&buffer, None);
    let back = setup.tracker.counts(&buffer).unwrap();
    assert_eq!((back.bytes_to_device, back.bytes_to_host), (8 * MIB as u64, 8 * MIB as u64), "{back}");
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 7));
    assert!(setup.tracker.counts(&buffer).unwrap().is_without_faults());
    drop(buffer);
    setup.finish();
}

#[test]
fn host_access_to_device_pages_counts_host_faults() {
    let Some(setup) = Setup::new() else { return };
    let (one, other) = (setup.written(4 * MIB), setup.written(4 * MIB));
    for buffer in [&one, &other] {
        setup.prefetch(buffer, Some(setup.device.ordinal()));
    }
    setup.tracker.reset().unwrap();
    assert!(one.read().unwrap().iter().all(|byte| *byte == 1));
    let counts = setup.tracker.counts(&one).unwrap();
    assert!(counts.cpu_faults > 0 && !counts.is_without_faults(), "{counts}");
    assert_eq!(
        (counts.bytes_to_host, counts.bytes_to_device, counts.lost),
        (4 * MIB as u64, 0, 0),
        "{counts}"
    );
    assert_eq!(setup.tracker.counts(&other).unwrap(), Default::default(), "the other one stays where it is");
    let half = one.slice(..2 * MIB).unwrap();
    assert_eq!(setup.tracker.counts(&half).unwrap().bytes_to_host, 2 * MIB as u64);
    assert!(setup.tracker.total().unwrap().bytes_to_host >= 4 * MIB as u64);
    drop((one, other, half));
    setup.finish();
}

#[test]
fn reset_forgets_and_trackers_do_not_disturb_each_other() {
    let Some(setup) = Setup::new() else { return };
    let buffer = setup.written(2 * MIB);
    setup.tracker.reset().unwrap();
    setup.prefetch(&buffer, Some(setup.device.ordinal()));
    let second = MigrationTracker::start(&setup.device).unwrap();
    assert_eq!(second.counts(&buffer).unwrap(), Default::default(), "it starts from nothing");
    assert_eq!(setup.tracker.counts(&buffer).unwrap().bytes_to_device, 2 * MIB as u64);
    setup.tracker.reset().unwrap();
    assert_eq!(setup.tracker.counts(&buffer).unwrap(), Default::default());
    setup.prefetch(&buffer, None);
    assert_eq!(second.counts(&buffer).unwrap().bytes_to_host, 2 * MIB as u64);
    drop(second);
    setup.prefetch(&buffer, Some(setup.device.ordinal()));
    let counts = setup.tracker.counts(&buffer).unwrap();
    assert_eq!((counts.bytes_to_host, counts.bytes_to_device), (2 * MIB as u64, 2 * MIB as u64));
    drop(buffer);
    setup.finish();
}

#[test]
fn after_the_last_tracker_another_can_start() {
    let Some(setup) = Setup::new() else { return };
    let buffer = setup.written(2 * MIB);
    let Setup { test, device, memory, stream, tracker, _turn } = setup;
    drop(tracker);
    let setup =
        Setup { test, tracker: MigrationTracker::start(&device).unwrap(), device, memory, stream, _turn };
    setup.prefetch(&buffer, Some(setup.device.ordinal()));
    let counts = setup.tracker.counts(&buffer).unwrap();
    assert_eq!(counts.bytes_to_device, 2 * MIB as u64, "{counts}");
    drop(buffer);
    setup.finish();
}

#[test]
fn tracker_starts_with_zero_counts() {
    let Some(setup) = Setup::new() else { return };
    let Setup { test, device, memory, stream, tracker, _turn } = setup;
    drop(tracker);
    // Each first tracker must verify the counters again, with memory of its own; later ones need not.
    let started = || {
        let trace = transload_cuda_sys::trace::start();
        let tracker = MigrationTracker::start(&device).unwrap();
        assert_eq!(tracker.total().unwrap(), Default::default());
        (tracker, trace.calls_of_this_thread().iter().any(|call| call.name == "cuMemAllocManaged"))
    };
    let (tracker, first_tried) = started();
    let (second, second_tried) = started();
    assert_eq!((first_tried, second_tried), (true, false));
    drop(second);
    Setup { test, tracker, device, memory, stream, _turn }.finish();
}

#[test]
fn memory_that_does_not_migrate_is_refused() {
    let Some(setup) = Setup::new() else { return };
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        let buffer = setup.memory.allocate(kind, 4096).unwrap();
        let error = setup.tracker.counts(&buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("only unified memory"), "{error}");
    }
    assert_eq!(setup.tracker.device(), DeviceId::Cuda(setup.device.ordinal()));
    setup.finish();
}
