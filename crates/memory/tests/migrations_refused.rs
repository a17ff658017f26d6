//! Starting migration counters that are unavailable: simulated driver only, in a process of its own, since CUPTI has
//! one user.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use transload_core::{EngineRecord, EngineRecording as _, ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream as _, Driver, Stream, StreamOptions, check, ffi};
use transload_memory::{ActivityRecording, CudaDevice, CudaMemoryManager, MigrationTracker, OperationCalls};

/// Tests of this file take turns: the counters are the process's.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A completed prefetch. `None` means the host.
fn prefetch_on(device: &CudaDevice, stream: &Stream, buffer: &RawBuffer, to: Option<u32>) {
    let to = to.map_or(-1, |ordinal| i32::try_from(ordinal).unwrap());
    let _bound = device.context().unwrap().enter().unwrap();
    let address = buffer.device_address().unwrap();
    // SAFETY: the range is managed memory without another user, and the stream is waited for.
    check("prefetch", unsafe { ffi::cuMemPrefetchAsync(address, buffer.len(), to, stream.as_raw()) })
        .unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn refused_counters_fail_the_start_and_leak_nothing() {
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    harness::refuse_migration_counters(Some(28));
    let error = MigrationTracker::start(&device).unwrap_err();
    harness::refuse_migration_counters(None);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("unavailable") && text.contains("28") && text.contains("NOT_SUPPORTED"), "{text}");
    drop(MigrationTracker::start(&device).unwrap());
    drop(device);
    test.assert_no_live_objects();
    let old = harness::device_with(|builder| builder.pre_pascal()).unwrap();
    let error = MigrationTracker::start(&CudaDevice::new(old.ordinal()).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    old.assert_no_live_objects();
}

#[test]
fn counters_without_records_are_unavailable() {
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    harness::silence_migration_counters(true);
    let error = MigrationTracker::start(&device).unwrap_err();
    harness::silence_migration_counters(false);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("before the process's first CUDA context"), "{error}");
    drop(MigrationTracker::start(&device).unwrap());
    drop(device);
    test.assert_no_live_objects();
}

#[test]
fn lost_records_are_reported() {
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    let tracker = MigrationTracker::start(&device).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = Stream::new(device.context().unwrap(), StreamOptions::default()).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, 2 << 20).unwrap();
    buffer.write().unwrap().fill(1);
    tracker.reset().unwrap();
    assert_eq!(tracker.total().unwrap().lost, 0);
    harness::limit_migration_records(Some(1));
    prefetch_on(&device, &stream, &buffer, Some(device.ordinal()));
    let (total, counts) = (tracker.total().unwrap(), tracker.counts(&buffer).unwrap());
    harness::limit_migration_records(None);
    assert!(total.lost > 0 && counts.lost == total.lost, "{total}; {counts}");
    assert!(!counts.is_without_faults(), "nobody knows");
    assert!(counts.to_string().contains("lower bounds"), "{counts}");
    assert!(counts.bytes_to_device < 2 << 20, "{counts}");
    drop((tracker, buffer, stream));
    memory.drain().unwrap();
    drop((memory, device));
    test.assert_no_live_objects();
}

#[test]
fn counters_of_another_tool_are_refused() {
    type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);
    extern "C" fn ignored(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
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
    let error = ActivityRecording::start([&device]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("another user of CUPTI"), "{error}");
    OperationCalls::begin();
    assert_eq!(OperationCalls::end(), None, "nothing is recorded");
    assert_eq!(unsubscribe(other), 0, "the refused start took nothing from it");
    drop(MigrationTracker::start(&device).unwrap());
    drop(device);
    test.assert_no_live_objects();
}

#[test]
fn recording_of_unused_devices_makes_no_context_and_one_without_migrations_leaves_others_theirs() {
    let _turn = turn();
    let tests =
        [harness::device_with(|builder| builder), harness::device_with(|builder| builder.pre_pascal())];
    let tests = tests.map(Option::unwrap);
    let devices = [0, 1].map(|which: usize| CudaDevice::new(tests[which].ordinal()).unwrap());
    let recording = ActivityRecording::start(&devices).unwrap();
    for device in &devices {
        assert!(!device.has_context(), "{} is not in use", device.id());
    }
    recording.records_migrations().unwrap();
    let memory = CudaMemoryManager::new(&devices[0]).unwrap();
    let stream = Stream::new(devices[0].context().unwrap(), StreamOptions::default()).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, 2 << 20).unwrap();
    buffer.write().unwrap().fill(1);
    {
        let _bound = devices[0].context().unwrap().enter().unwrap();
        let (address, raw) = (buffer.device_address().unwrap(), stream.as_raw());
        // SAFETY: the range is managed memory without another user, and the stream is waited for.
        check("fill", unsafe { ffi::cuMemsetD8Async(address, 1, 4096, raw) }).unwrap();
    }
    stream.synchronize().unwrap();
    let mut records = Vec::new();
    recording.take(&mut records, false).unwrap();
    assert!(records.iter().any(|record| matches!(record, EngineRecord::Faulted(_))), "{records:?}");
    drop((buffer, stream, recording, memory, devices));
    tests.iter().for_each(|test| test.assert_no_live_objects());
}

/// Trackers and recordings share the subscription; each ends its own records only.
#[test]
fn recordings_and_trackers_share_the_subscription() {
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = Stream::new(device.context().unwrap(), StreamOptions::default()).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, 2 << 20).unwrap();
    buffer.write().unwrap().fill(1);
    let fill = || {
        let _bound = device.context().unwrap().enter().unwrap();
        let (address, raw) = (buffer.device_address().unwrap(), stream.as_raw());
        // SAFETY: the range is managed memory without another user, and the stream is waited for.
        check("fill", unsafe { ffi::cuMemsetD8Async(address, 1, 4096, raw) }).unwrap();
        stream.synchronize().unwrap();
    };
    let taken = |recording: &ActivityRecording| {
        let mut records = Vec::new();
        let lost = recording.take(&mut records, false).unwrap();
        (records, lost)
    };
    let (tracker, recording) =
        (MigrationTracker::start(&device).unwrap(), ActivityRecording::start([&device]).unwrap());
    let others_test = harness::device_with(|builder| builder.pre_pascal()).unwrap();
    let others_device = CudaDevice::new(others_test.ordinal()).unwrap();
    let other = ActivityRecording::start([&others_device]).unwrap();
    assert_eq!(other.records_migrations().unwrap_err().kind(), ErrorKind::Unsupported);
    recording.records_migrations().unwrap();
    OperationCalls::begin();
    fill();
    let id = OperationCalls::end().unwrap();
    assert_eq!((OperationCalls::take(), OperationCalls::take()), (Some(id), None));
    fill();
    let (records, lost) = taken(&recording);
    let operation = records.iter().find_map(|record| match record {
        EngineRecord::Called { call, operation } => Some((*call, *operation)),
        _ => None,
    });
    let work = records.iter().filter_map(|record| match record {
        EngineRecord::Worked(work) => Some(work.call),
        _ => None,
    });
    let work: Vec<_> = work.collect();
    assert_eq!((work.len(), operation, lost), (2, Some((work[0], id)), 0), "{records:?}");
    prefetch_on(&device, &stream, &buffer, Some(device.ordinal()));
    let (records, _) = taken(&recording);
    let moved = records.iter().filter_map(|record| match record {
        EngineRecord::Migrated(moved) if moved.end > moved.begin => {
            Some((moved.device, moved.to_device, moved.bytes))
        }
        _ => None,
    });
    let page = (device.id(), true, 64 << 10);
    assert_eq!(moved.collect::<Vec<_>>(), vec![page; 32], "{records:?}");
    let is_work =
        |record: &EngineRecord| matches!(record, EngineRecord::Worked(_) | EngineRecord::Migrated(_));
    assert!(!taken(&other).0.iter().any(is_work), "another device's");
    harness::limit_migration_records(Some(1));
    (0..3).for_each(|_| fill());
    let (records, lost) = taken(&recording);
    harness::limit_migration_records(None);
    assert!(lost > 0 && records.len() <= 1, "{lost} lost, {records:?}");
    drop((recording, other));
    OperationCalls::begin();
    assert_eq!(OperationCalls::end(), None, "nothing is recorded any more");
    tracker.reset().unwrap();
    prefetch_on(&device, &stream, &buffer, None);
    prefetch_on(&device, &stream, &buffer, Some(device.ordinal()));
    assert!(tracker.total().unwrap().bytes_to_device > 0, "the tracker goes on");
    drop((tracker, buffer, stream, others_device));
    memory.drain().unwrap();
    drop((memory, device));
    test.assert_no_live_objects();
    others_test.assert_no_live_objects();
}

/// Number of record buffers that CUPTI requested.
static WANTED: AtomicU32 = AtomicU32::new(0);

#[test]
fn no_record_is_made_after_the_last_tracker() {
    type Requested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
    type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
    /// Allocates nothing: the call alone is checked.
    extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most: *mut usize) {
        WANTED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the library passes three valid out pointers.
        unsafe {
            buffer.write(ptr::null_mut());
            bytes.write(0);
            most.write(0);
        }
    }
    extern "C" fn completed(_: *mut c_void, _: u32, _: *mut u8, _: usize, _: usize) {}
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    let tracker = MigrationTracker::start(&device).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = Stream::new(device.context().unwrap(), StreamOptions::default()).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, 2 << 20).unwrap();
    buffer.write().unwrap().fill(1);
    let tool = |name: &CStr| Driver::get().unwrap().installed().unwrap().tool_symbol(name).unwrap();
    // SAFETY: CUPTI's headers give the name this signature.
    let register: extern "C" fn(Requested, Completed) -> u32 =
        unsafe { std::mem::transmute(tool(c"cuptiActivityRegisterCallbacks")) };
    // SAFETY: as above.
    let flush: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(tool(c"cuptiActivityFlushAll")) };
    let second = MigrationTracker::start(&device).unwrap();
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
    drop((buffer, stream));
    drop(MigrationTracker::start(&device).unwrap());
    memory.drain().unwrap();
    drop((memory, device));
    test.assert_no_live_objects();
}

#[test]
fn each_failing_call_of_a_start_is_a_typed_error() {
    let _turn = turn();
    let kinds = [ErrorKind::OutOfMemory, ErrorKind::Device];
    harness::fail_each_call(
        |builder| builder,
        &[2],
        &kinds,
        |sim| CudaDevice::new(sim.ordinal()).and_then(|device| MigrationTracker::start(&device).map(drop)),
    );
}
