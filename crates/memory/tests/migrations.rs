//! What the counters of migrations promise, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`). A
//! process of its own: CUPTI has to be there before the first context, and has one user.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_cuda_sys::{AsStream as _, Driver, Stream, StreamOptions, check, ffi};
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
    /// Nothing, with a line that says why, where there are no counters.
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

    /// A prefetch that is over. `None` means the host.
    fn prefetch(&self, buffer: &RawBuffer, to: Option<u32>) {
        prefetch_on(&self.device, &self.stream, buffer, to);
    }

    /// Device work that touches every byte: a fill.
    fn touch_on_the_device(&self, buffer: &RawBuffer) {
        let _bound = self.device.context().unwrap().enter().unwrap();
        let address = buffer.device_address().unwrap();
        // SAFETY: the range is managed memory, nobody else uses it, and the stream is waited for.
        check("fill", unsafe { ffi::cuMemsetD8Async(address, 7, buffer.len(), self.stream.as_raw()) })
            .unwrap();
        self.stream.synchronize().unwrap();
    }

    fn finish(self) {
        let Self { test, device, memory, stream, tracker, _turn } = self;
        drop((tracker, stream));
        memory.drain().unwrap();
        assert!(memory.ledger().is_empty(), "{}", memory.ledger());
        drop((memory, device));
        test.assert_ledger_empty();
    }
}

fn prefetch_on(device: &CudaDevice, stream: &Stream, buffer: &RawBuffer, to: Option<u32>) {
    let to = to.map_or(-1, |ordinal| i32::try_from(ordinal).unwrap());
    let _bound = device.context().unwrap().enter().unwrap();
    let address = buffer.device_address().unwrap();
    // SAFETY: the range is managed memory, nobody else uses it, and the stream is waited for.
    check("prefetch", unsafe { ffi::cuMemPrefetchAsync(address, buffer.len(), to, stream.as_raw()) })
        .unwrap();
    stream.synchronize().unwrap();
}

const MIB: usize = 1 << 20;

#[test]
fn a_prefetch_counts_its_bytes_and_faults_nobody_afterwards() {
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
fn the_hosts_touch_of_what_the_device_has_is_counted_as_faults_of_the_host() {
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
fn after_the_last_tracker_nothing_is_counted_and_another_one_can_start() {
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

#[test]
fn where_the_counters_are_refused_the_start_says_so_and_leaves_nothing_behind() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let setup = Setup::new().unwrap();
    let Setup { test, device, memory, stream, tracker, _turn } = setup;
    drop(tracker);
    harness::refuse_migration_counters(Some(28));
    let error = MigrationTracker::start(&device).unwrap_err();
    harness::refuse_migration_counters(None);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("unavailable") && text.contains("28") && text.contains("NOT_SUPPORTED"), "{text}");
    let tracker = MigrationTracker::start(&device).unwrap();
    Setup { test, device, memory, stream, tracker, _turn }.finish();
    let old = harness::device_with(|builder| builder.pre_pascal()).unwrap();
    let error = MigrationTracker::start(&CudaDevice::new(old.ordinal()).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    old.assert_ledger_empty();
}

#[test]
fn another_tool_that_has_the_counters_keeps_them() {
    type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);
    extern "C" fn ignored(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let setup = Setup::new().unwrap();
    let Setup { test, device, memory, stream, tracker, _turn } = setup;
    drop(tracker);
    let tool = |name: &CStr| Driver::get().unwrap().installed().unwrap().tool_symbol(name).unwrap();
    // SAFETY: CUPTI's headers give the name this signature.
    let subscribe: extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> u32 =
        unsafe { std::mem::transmute(tool(c"cuptiSubscribe")) };
    // SAFETY: as above.
    let unsubscribe: extern "C" fn(*mut c_void) -> u32 =
        unsafe { std::mem::transmute(tool(c"cuptiUnsubscribe")) };
    let mut other = ptr::null_mut();
    assert_eq!(subscribe(&mut other, ignored, ptr::null_mut()), 0);
    let error = MigrationTracker::start(&device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("another user of CUPTI"), "{error}");
    assert_eq!(unsubscribe(other), 0, "the refused start took nothing from it");
    let tracker = MigrationTracker::start(&device).unwrap();
    Setup { test, device, memory, stream, tracker, _turn }.finish();
}

/// How often CUPTI wanted a buffer of the test's for records.
static WANTED: AtomicU32 = AtomicU32::new(0);

#[test]
fn behind_the_last_tracker_no_record_is_made_for_anybody() {
    type Requested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
    type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
    /// Gives nothing: that it was asked is enough.
    extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most: *mut usize) {
        WANTED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the library passes three places for the answer.
        unsafe {
            buffer.write(ptr::null_mut());
            bytes.write(0);
            most.write(0);
        }
    }
    extern "C" fn completed(_: *mut c_void, _: u32, _: *mut u8, _: usize, _: usize) {}
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let setup = Setup::new().unwrap();
    let buffer = setup.written(2 * MIB);
    let tool = |name: &CStr| Driver::get().unwrap().installed().unwrap().tool_symbol(name).unwrap();
    // SAFETY: CUPTI's headers give the name this signature.
    let register: extern "C" fn(Requested, Completed) -> u32 =
        unsafe { std::mem::transmute(tool(c"cuptiActivityRegisterCallbacks")) };
    // SAFETY: as above.
    let flush: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(tool(c"cuptiActivityFlushAll")) };
    let second = MigrationTracker::start(&setup.device).unwrap();
    let Setup { test, device, memory, stream, tracker, _turn } = setup;
    assert_eq!((flush(1), register(requested, completed)), (0, 0));
    let wanted = || {
        let before = WANTED.load(Ordering::SeqCst);
        prefetch_on(&device, &stream, &buffer, Some(device.ordinal()));
        prefetch_on(&device, &stream, &buffer, None);
        assert_eq!(flush(1), 0);
        WANTED.load(Ordering::SeqCst) - before
    };
    drop(second);
    assert!(wanted() > 0, "one tracker is left");
    drop(tracker);
    assert_eq!(wanted(), 0);
    drop(buffer);
    let tracker = MigrationTracker::start(&device).unwrap();
    Setup { test, device, memory, stream, tracker, _turn }.finish();
}

#[test]
fn each_failing_driver_call_of_a_start_is_a_typed_error_and_nothing_leaks() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for nth in 1..100 {
        let test = harness::device_with(|builder| builder).unwrap();
        let sim = test.sim().unwrap();
        sim.fail_call(None, nth, 2);
        let outcome =
            CudaDevice::new(test.ordinal()).and_then(|device| MigrationTracker::start(&device).map(drop));
        if let Err(error) = &outcome {
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::Device),
                "call {nth}: {error:?}"
            );
        }
        // What was made to fail to go stays, and says so.
        let failed_drops = transload_cuda_sys::take_drop_errors();
        assert!(sim.ledger().is_empty() || !failed_drops.is_empty(), "call {nth}: {}", sim.ledger());
        if sim.calls() < nth {
            outcome.unwrap();
            drop(turn);
            return;
        }
    }
    panic!("the start never ended");
}
