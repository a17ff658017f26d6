//! The part of CUPTI that records migrations and page faults of managed memory, and what engines did.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_void},
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use super::Pointer;
use crate::{
    activities::{self, Activity},
    code::CuResult,
    memory::PAGE,
    migrations::Migrations,
    symbols::in_table,
};

const SUCCESS: u32 = 0;
const INVALID_PARAMETER: u32 = 1;
const INVALID_OPERATION: u32 = 7;
const MAX_LIMIT_REACHED: u32 = 12;
const INVALID_KIND: u32 = 21;
const QUEUE_EMPTY: u32 = 16;
const MULTIPLE_SUBSCRIBERS: u32 = 39;

/// `CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER`.
pub(crate) const KIND: u32 = 25;
const VERSION: u32 = 130_001;
/// The id that an H200's driver reports for the host.
const HOST: u32 = 0;
/// Default number of records kept until a flush; further ones are dropped and counted.
const MAX_RECORDS: usize = 1 << 20;

/// `CUpti_ActivityUnifiedMemoryCounter3`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Migration {
    kind: u32,
    counter: u32,
    value: u64,
    start: u64,
    end: u64,
    address: u64,
    source: u32,
    destination: u32,
    stream: u32,
    process: u32,
    flags: u32,
    pad: u32,
    processors: [u64; 5],
}

/// `CUpti_ActivityUnifiedMemoryCounterConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    scope: u32,
    kind: u32,
    device: u32,
    enable: u32,
}

/// A record of any kind.
#[derive(Clone, Copy, Debug)]
enum Record {
    Migration(Migration),
    Activity(Activity),
}

impl Record {
    /// Returns the record as the library delivers it.
    fn bytes(&self) -> Vec<u8> {
        match self {
            // SAFETY: the struct has no padding.
            Self::Migration(record) => unsafe {
                std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), size_of::<Migration>())
            }
            .to_vec(),
            Self::Activity(activity) => activity.bytes(),
        }
    }
}

thread_local! {
    /// External ids of the thread's calls, with their kinds; the last of a kind counts.
    static EXTERNAL: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

impl Cupti {
    fn is_enabled(&self, kind: u32) -> bool {
        self.enabled >> kind & 1 == 1
    }

    fn push(&mut self, record: Record) {
        match self.records.len() < self.max_records {
            true => self.records.push(record),
            false => self.dropped += 1,
        }
    }
}

/// Whether anything but migrations is enabled.
static RECORDS_ACTIVITIES: AtomicBool = AtomicBool::new(false);

/// Numbers a call that enqueues work, and records that it was made; 0 if nothing is recorded.
pub(crate) fn record_call() -> u32 {
    if !RECORDS_ACTIVITIES.load(Ordering::Relaxed) {
        return 0;
    }
    let mut cupti = CUPTI.lock();
    if cupti.silent {
        return 0;
    }
    let call = activities::next_call();
    if cupti.is_enabled(activities::DRIVER) {
        if cupti.is_enabled(activities::CORRELATION) {
            let mut external = EXTERNAL.with_borrow(Clone::clone);
            external.reverse();
            external.sort_by_key(|(kind, _)| *kind);
            external.dedup_by_key(|(kind, _)| *kind);
            for (kind, id) in external {
                cupti.push(Record::Activity(Activity::Correlation { kind, id, call }));
            }
        }
        cupti.push(Record::Activity(Activity::Driver { call }));
    }
    call
}

/// Records work that ended.
pub(crate) fn record_activity(activity: Activity) {
    let mut cupti = CUPTI.lock();
    if cupti.is_enabled(activity.kind()) && !cupti.silent {
        cupti.push(Record::Activity(activity));
    }
}

type Requested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

struct Cupti {
    subscribed: bool,
    callbacks: Option<(Requested, Completed)>,
    counters: [bool; 5],
    /// Bits by number of the kind.
    enabled: u64,
    records: Vec<Record>,
    /// Migrations of the operation that runs, whose times are not known.
    untimed: Vec<Migration>,
    dropped: usize,
    refusal: Option<u32>,
    silent: bool,
    max_records: usize,
}

static CUPTI: Mutex<Cupti> = Mutex::new(Cupti {
    subscribed: false,
    callbacks: None,
    counters: [false; 5],
    enabled: 0,
    records: Vec::new(),
    untimed: Vec::new(),
    dropped: 0,
    refusal: None,
    silent: false,
    max_records: MAX_RECORDS,
});

/// Makes configuring the software driver's CUPTI counters fail with a code (28: not supported); `None` allows it again.
/// Process-wide.
pub fn refuse_migration_counters(code: Option<u32>) {
    CUPTI.lock().refusal = code;
}

/// Makes the software driver's CUPTI accept every call but deliver no records, like a real one that was loaded after
/// the context was created; `false` ends that. Process-wide.
pub fn silence_migration_counters(silent: bool) {
    CUPTI.lock().silent = silent;
}

/// Limits how many records the software driver's CUPTI keeps between two flushes; further ones are dropped. `None`
/// restores the default. Process-wide.
pub fn limit_migration_records(most: Option<usize>) {
    CUPTI.lock().max_records = most.unwrap_or(MAX_RECORDS);
}

/// `CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER`.
const CAUSE_USER: u32 = 1;
/// `CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE`.
const CAUSE_COHERENCE: u32 = 2;

/// Records migrations and faults of the page at `address`, between the host and the device.
pub(crate) fn record_migration(address: u64, device: u32, delta: Migrations) {
    let mut cupti = CUPTI.lock();
    if !cupti.is_enabled(KIND) || cupti.silent {
        return;
    }
    let Migrations { to_device, to_host, gpu_faults, cpu_faults } = delta;
    let events = [
        (1, to_device, PAGE, HOST, device),
        (2, to_host, PAGE, device, HOST),
        (3, cpu_faults, 0x00C0_FFEE, HOST, 0),
        (4, gpu_faults, 1, device, 0),
    ];
    for (counter, _, value, source, destination) in events.into_iter().filter(|event| event.1 > 0) {
        if !cupti.counters[counter] {
            continue;
        }
        cupti.untimed.push(Migration {
            kind: KIND,
            counter: counter as u32,
            value,
            start: 0,
            end: 0,
            address,
            source,
            destination,
            stream: 0,
            process: std::process::id(),
            flags: if gpu_faults + cpu_faults > 0 { CAUSE_COHERENCE } else { CAUSE_USER },
            pad: 0,
            processors: [0; 5],
        });
    }
}

/// Gives the migrations since the last call their times, on the clock of the records. Called under the driver's lock, under which they were recorded.
pub(crate) fn time_migrations(times: impl FnOnce() -> (u64, u64)) {
    let mut cupti = CUPTI.lock();
    if cupti.untimed.is_empty() {
        return;
    }
    let (start, end) = times();
    for migration in std::mem::take(&mut cupti.untimed) {
        cupti.push(Record::Migration(Migration { start, end, ..migration }));
    }
}

/// Returns the CUPTI function exported under a name.
pub(crate) fn find(name: &CStr) -> Option<NonNull<c_void>> {
    in_table(SYMBOLS.iter(), name.to_str().ok()?)
}

fn switch(kind: u32, on: bool) -> CuResult {
    if kind != KIND && !activities::KINDS.contains(&kind) {
        return Err(INVALID_KIND);
    }
    let mut cupti = CUPTI.lock();
    let without = cupti.enabled & !(1 << kind);
    cupti.enabled = without | u64::from(on) << kind;
    RECORDS_ACTIVITIES.store(cupti.enabled & !(1 << KIND) != 0, Ordering::Relaxed);
    Ok(())
}

driver! {
    fn cuptiGetVersion(version: Pointer<u32>) {
        version.set(VERSION)
    }

    fn cuptiGetResultString(code: u32, text: Pointer<*const c_char>) {
        let known = match code {
            SUCCESS => c"CUPTI_SUCCESS",
            28 => c"CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED",
            MULTIPLE_SUBSCRIBERS => c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            _ => c"CUPTI_ERROR",
        };
        text.set(known.as_ptr())
    }

    fn cuptiSubscribe(subscriber: Pointer<*mut c_void>, _callback: *mut c_void, _user: *mut c_void) {
        let mut cupti = CUPTI.lock();
        if cupti.subscribed {
            return Err(MULTIPLE_SUBSCRIBERS);
        }
        cupti.subscribed = true;
        subscriber.set(NonNull::<c_void>::dangling().as_ptr())
    }

    fn cuptiUnsubscribe(_subscriber: *mut c_void) {
        let was = std::mem::take(&mut CUPTI.lock().subscribed);
        if was { Ok(()) } else { Err(INVALID_PARAMETER) }
    }

    fn cuptiActivityRegisterCallbacks(requested: Requested, completed: Completed) {
        CUPTI.lock().callbacks = Some((requested, completed));
        Ok(())
    }

    fn cuptiActivityConfigureUnifiedMemoryCounter(configs: *const Config, count: u32) {
        let mut cupti = CUPTI.lock();
        if let Some(code) = cupti.refusal {
            return Err(code);
        }
        if configs.is_null() {
            return Err(INVALID_PARAMETER);
        }
        // SAFETY: the caller passes `count` elements.
        for config in unsafe { std::slice::from_raw_parts(configs, count as usize) } {
            match cupti.counters.get_mut(config.kind as usize) {
                Some(counter) if config.kind > 0 && matches!(config.scope, 1 | 2) => {
                    *counter = config.enable != 0
                }
                _ => return Err(INVALID_PARAMETER),
            }
        }
        Ok(())
    }

    fn cuptiActivityEnable(kind: u32) {
        switch(kind, true)
    }

    fn cuptiActivityDisable(kind: u32) {
        switch(kind, false)
    }

    fn cuptiActivityFlushAll(_forced: u32) {
        let (records, callbacks) = {
            let mut cupti = CUPTI.lock();
            (std::mem::take(&mut cupti.records), cupti.callbacks)
        };
        let Some((requested, completed)) = callbacks else { return Err(INVALID_OPERATION) };
        let records: Vec<_> = records.iter().map(Record::bytes).collect();
        let mut left = &records[..];
        while !left.is_empty() {
            let (mut buffer, mut size, mut most) = (std::ptr::null_mut(), 0, 0);
            requested(&mut buffer, &mut size, &mut most);
            let mut filled = 0;
            let fits = |record: &&Vec<u8>| {
                filled += record.len();
                filled <= size
            };
            let fit = left.iter().take_while(fits).count();
            if buffer.is_null() || fit == 0 {
                CUPTI.lock().dropped += left.len();
                return Ok(());
            }
            let (now, later) = left.split_at(fit);
            let bytes = now.concat();
            // SAFETY: the caller's buffer has room for `size` bytes; bytes need no alignment.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
            completed(std::ptr::null_mut(), 0, buffer, size, bytes.len());
            left = later;
        }
        Ok(())
    }

    fn cuptiActivityGetNextRecord(buffer: *mut u8, valid: usize, record: Pointer<*mut u8>) {
        let Ok(before) = record.get() else { return Err(INVALID_PARAMETER) };
        let at = if before.is_null() {
            0
        } else {
            // SAFETY: the record before begins with its kind.
            let kind = unsafe { before.cast::<u32>().read_unaligned() };
            before.addr() - buffer.addr() + activities::size_of_kind(kind)
        };
        if at + size_of::<u32>() > valid {
            return Err(MAX_LIMIT_REACHED);
        }
        record.set(buffer.wrapping_add(at))
    }

    fn cuptiGetTimestamp(time: Pointer<u64>) {
        time.set(activities::now())
    }

    fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) {
        EXTERNAL.with_borrow_mut(|ids| ids.push((kind, id)));
        Ok(())
    }

    fn cuptiActivityPopExternalCorrelationId(kind: u32, id: Pointer<u64>) {
        let popped = EXTERNAL.with_borrow_mut(|ids| {
            let last = ids.iter().rposition(|(of, _)| *of == kind)?;
            Some(ids.remove(last).1)
        });
        let popped = popped.ok_or(QUEUE_EMPTY)?;
        if id.is_null() { Ok(()) } else { id.set(popped) }
    }

    fn cuptiActivityGetNumDroppedRecords(_context: *mut c_void, _stream: u32, dropped: Pointer<usize>) {
        let count = std::mem::take(&mut CUPTI.lock().dropped);
        dropped.set(count)
    }
}
