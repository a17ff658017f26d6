//! Handling of CUPTI's results, with a test library.

use std::{
    ffi::{CStr, c_void},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

use super::{AnyRecord, Counter, Cupti, KIND, event};
use crate::migrations::{Event, Record};

/// The library's version.
static VERSION: AtomicU32 = AtomicU32::new(0);

extern "C" fn version(into: *mut u32) -> u32 {
    // SAFETY: the caller's out pointer.
    unsafe { into.write(VERSION.load(Ordering::SeqCst)) };
    0
}

/// Consecutive records of 64 bytes.
extern "C" fn next(buffer: *mut u8, valid: usize, record: *mut *mut Counter) -> u32 {
    const NO_MORE: u32 = 12;
    // SAFETY: the caller's pointer to the previous record, or null.
    let before = unsafe { record.read() };
    let at = if before.is_null() { 0 } else { before.addr() - buffer.addr() + size_of::<Counter>() };
    if at >= valid {
        return NO_MORE;
    }
    // SAFETY: the caller's out pointer; the record begins within the valid bytes.
    unsafe { record.write(buffer.byte_add(at).cast()) };
    0
}

extern "C" fn dropped(_context: *mut c_void, _stream: u32, into: *mut usize) -> u32 {
    // SAFETY: the caller's out pointer.
    unsafe { into.write(3) };
    0
}

extern "C" fn not_called() -> u32 {
    1
}

fn library() -> Result<Cupti, String> {
    let find = |name: &CStr| {
        let function = match name.to_bytes() {
            b"cuptiGetVersion" => version as *const (),
            b"cuptiActivityGetNextRecord" => next as *const (),
            b"cuptiActivityGetNumDroppedRecords" => dropped as *const (),
            _ => not_called as *const (),
        };
        NonNull::new(function.cast_mut().cast::<c_void>())
    };
    Cupti::resolve(find, "a library of the test's".to_owned())
}

fn migration(record: &AnyRecord) -> Option<Event> {
    match record {
        AnyRecord::Migration(Record { event, .. }) => Some(*event),
        AnyRecord::Activity(_) => None,
    }
}

fn counter(kind: u32, counter: u32) -> Counter {
    Counter {
        kind,
        counter,
        value: 0,
        start: 0,
        end: 0,
        address: 4096,
        source: 7,
        destination: 8,
        stream: 0,
        process: 0,
        flags: 1,
        pad: 0,
    }
}

#[test]
fn unknown_versions_are_refused() {
    for (number, known) in [
        (12, false),
        (13, true),
        (22, true),
        (28, true),
        (29, false),
        (130_000, true),
        (130_001, true),
        (140_000, false),
        (0, false),
    ] {
        VERSION.store(number, Ordering::SeqCst);
        let outcome = library().unwrap().check_version().map(drop);
        assert_eq!(outcome.is_ok(), known, "{number}");
        assert!(known || outcome.unwrap_err().contains(&format!("has version {number}")));
    }
    assert!(Cupti::resolve(|_| None, "nothing".to_owned()).err().unwrap().contains("has no cuptiGetVersion"));
}

#[test]
fn record_names_its_device_and_whether_a_fault_caused_it() {
    // Causes: unknown, user, fault, speculation, eviction.
    for (flags, by_faults) in [(0, false), (1, false), (2, true), (3, true), (4, false)] {
        let record = Counter { value: 500, flags, ..counter(KIND, 1) };
        assert_eq!(event(&record), Some(Event::ToDevice { device: 8, bytes: 500, by_faults }), "{flags}");
    }
    let record = Counter { value: 600, ..counter(KIND, 2) };
    assert_eq!(event(&record), Some(Event::ToHost { device: 7, bytes: 600 }));
    assert_eq!(event(&counter(KIND, 3)), Some(Event::CpuFault));
    for (value, groups) in [(0, 1), (1, 1), (5, 5)] {
        let record = Counter { value, ..counter(KIND, 4) };
        assert_eq!(
            event(&record),
            Some(Event::GpuFault { device: 7, groups }),
            "a record is of one at least"
        );
    }
    assert_eq!(event(&counter(KIND, 99)), None);
    assert_eq!(event(&counter(KIND + 1, 1)), None);
}

#[test]
fn unknown_records_are_counted_and_other_kinds_ignored() {
    let library = library().unwrap();
    let mut records = [counter(KIND, 3), counter(KIND + 1, 3), counter(KIND, 99), counter(KIND, 2)];
    let buffer = records.as_mut_ptr().cast::<u8>();
    let read = |valid| {
        let mut found = Vec::new();
        // SAFETY: the records have at least this many bytes.
        let unknown = unsafe { library.read(buffer, valid, |record| found.extend(migration(&record))) };
        (unknown, found)
    };
    let back = Event::ToHost { device: 7, bytes: 0 };
    assert_eq!(read(4 * 64), ([1, 0], vec![Event::CpuFault, back]));
    assert_eq!(read(3 * 64), ([1, 0], vec![Event::CpuFault]));
    assert_eq!(read(2 * 64), ([0, 0], vec![Event::CpuFault]), "the other kind is somebody else's");
    assert_eq!(read(64 + 4), ([0, 0], vec![Event::CpuFault]), "and may be shorter");
    assert_eq!(read(40), ([1, 0], vec![]), "cut off");
    assert_eq!(read(0), ([0, 0], vec![]));
    // An activity that has not ended is no migration.
    let mut running = [counter(1, 0)];
    // SAFETY: the record has this many bytes.
    let unknown = unsafe { library.read(running.as_mut_ptr().cast(), 64, |_| panic!("it is not known")) };
    assert_eq!(unknown, [0, 1]);
    // SAFETY: the test's function uses neither argument.
    assert_eq!(unsafe { library.dropped(ptr::null_mut(), 0) }, 3);
}
