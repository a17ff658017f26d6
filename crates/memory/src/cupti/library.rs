//! CUPTI bindings, loaded at run time: search paths, functions, and the unified-memory counter record.
//!
//! Declarations follow `cupti_activity.h` and `cupti_callbacks.h` of CUDA 12.4 and 13.0 (API versions 22 and 130001).
//! The record is `CUpti_ActivityUnifiedMemoryCounter2` up to CUDA 12.7 (64 bytes) and `...Counter3` from 12.8 on (104
//! bytes, five more words at the end); the fields used here have the same offsets in both.

use std::{
    ffi::{CStr, OsString, c_char, c_void},
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    sync::OnceLock,
};

use transload_core::{EngineRecord, Error, ErrorKind, Result};
use transload_cuda_sys::{Driver, Library};

use super::activity::{self, Activity};
use crate::{
    lift,
    migrations::{Event, Record},
};

/// Environment variable with the path of the library; empty counts as not set.
const PATH_VARIABLE: &str = "TRANSLOAD_CUPTI";
/// `CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER`.
const KIND: u32 = 25;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const MULTIPLE_SUBSCRIBERS: u32 = 39;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FLUSH_FORCED: u32 = 1;

/// Called to request a buffer: (buffer, its bytes, most records or 0).
pub(super) type Requested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// Called with a filled buffer: (context, stream, buffer, its bytes, valid bytes).
pub(super) type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// The head of a record, common to all its versions.
#[repr(C)]
struct Counter {
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
}

const _: () = assert!(size_of::<Counter>() == 64 && std::mem::offset_of!(Counter, address) == 32);

/// `CUpti_ActivityUnifiedMemoryCounterConfig`.
#[repr(C)]
struct Config {
    scope: u32,
    kind: u32,
    device: u32,
    enable: u32,
}

macro_rules! functions {
    ($( $field:ident = $name:literal: fn($($argument:ty),*); )*) => {
        /// The library's functions, with the signatures of the headers; they return 0 or an error code.
        pub(super) struct Cupti {
            $( $field: unsafe extern "C" fn($($argument),*) -> u32, )*
            /// `cuptiActivityEnableDriverApi`, of newer versions.
            enable_call: Option<unsafe extern "C" fn(u32, u8) -> u32>,
            origin: String,
        }

        impl Cupti {
            fn resolve(find: impl Fn(&CStr) -> Option<NonNull<c_void>>, origin: String) -> Result<Self, String> {
                $(
                    let Some(address) = find($name) else {
                        return Err(format!("{origin} has no {}", $name.to_string_lossy()));
                    };
                    // SAFETY: the library exports the function under this name with this signature.
                    let $field = unsafe {
                        std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) -> u32>(address)
                    };
                )*
                let enable_call = find(c"cuptiActivityEnableDriverApi").map(|address| {
                    // SAFETY: as above.
                    unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(u32, u8) -> u32>(address) }
                });
                Ok(Self { $( $field, )* enable_call, origin })
            }
        }
    };
}

functions! {
    version = c"cuptiGetVersion": fn(*mut u32);
    result_string = c"cuptiGetResultString": fn(u32, *mut *const c_char);
    subscribe = c"cuptiSubscribe": fn(*mut *mut c_void, extern "C" fn(*mut c_void, u32, u32, *const c_void), *mut c_void);
    unsubscribe = c"cuptiUnsubscribe": fn(*mut c_void);
    register = c"cuptiActivityRegisterCallbacks": fn(Requested, Completed);
    configure = c"cuptiActivityConfigureUnifiedMemoryCounter": fn(*mut Config, u32);
    enable = c"cuptiActivityEnable": fn(u32);
    disable = c"cuptiActivityDisable": fn(u32);
    flush = c"cuptiActivityFlushAll": fn(u32);
    next = c"cuptiActivityGetNextRecord": fn(*mut u8, usize, *mut *mut Counter);
    dropped = c"cuptiActivityGetNumDroppedRecords": fn(*mut c_void, u32, *mut usize);
    timestamp = c"cuptiGetTimestamp": fn(*mut u64);
    push = c"cuptiActivityPushExternalCorrelationId": fn(u32, u64);
    pop = c"cuptiActivityPopExternalCorrelationId": fn(u32, *mut u64);
}

/// The process's single subscription to the library.
#[derive(Debug)]
pub(super) struct Subscriber(usize);

/// What the library records, and for which listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Migrations and page faults of unified memory.
    Migrations,
    /// Copies, fills and kernels.
    Activities,
}

/// A record of one of these.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnyRecord {
    Migration(Record),
    Activity(EngineRecord),
}

/// Returns an error that says why CUPTI's records are unavailable.
pub(crate) fn unavailable(reason: impl AsRef<str>) -> Error {
    let text = format!("CUPTI's records are unavailable: {}", reason.as_ref());
    Error::new(ErrorKind::Unsupported, text)
}

/// Never used: subscribing only excludes other users.
extern "C" fn not_called(_user: *mut c_void, _domain: u32, _id: u32, _data: *const c_void) {}

impl Cupti {
    /// Returns the library, opened by the first call and never closed.
    ///
    /// # Errors
    /// `Unsupported` with the paths tried; the driver's.
    pub(super) fn get() -> Result<&'static Self> {
        static OPENED: OnceLock<Result<Cupti, String>> = OnceLock::new();
        let driver = Driver::get().map_err(lift)?;
        OPENED.get_or_init(|| Self::open(driver)).as_ref().map_err(unavailable)
    }

    fn open(driver: Driver) -> Result<Self, String> {
        if let Some(source) = driver.installed() {
            return Self::resolve(|name| source.tool_symbol(name), source.name().to_owned())?.check_version();
        }
        let resolve = |library: Library| {
            // Never closed: its functions are kept, and even a refused call may have started threads.
            let library = ManuallyDrop::new(library);
            Self::resolve(|name| library.symbol(name), library.origin().to_owned())?.check_version()
        };
        // SAFETY: the initialisers of NVIDIA's library have no preconditions.
        unsafe { Library::open_first(candidates(), resolve) }.map_err(|mut tried| {
            tried.push(format!("the variable {PATH_VARIABLE} may name the library"));
            tried.join("; ")
        })
    }

    /// Refuses versions whose records may differ.
    fn check_version(self) -> Result<Self, String> {
        let mut version = 0;
        // SAFETY: the out pointer is valid for the call.
        let code = unsafe { (self.version)(&mut version) };
        // CUDA 11.0 to 12.9 number their versions consecutively; from 13.0 on it is 10,000 times the major version plus
        // the minor.
        if code == 0 && matches!(version, 13..=28 | 130_000..140_000) {
            return Ok(self);
        }
        Err(format!("{} has version {version}; those of CUDA 11.0 to 13 are known", self.origin))
    }

    fn check(&self, call: &str, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the out pointer is valid for the call.
        let known = unsafe { (self.result_string)(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: the library returned a static, NUL-terminated string.
        let name = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy() } else { "unknown".into() };
        let reason = match code {
            MULTIPLE_SUBSCRIBERS => {
                "; a profiler, a debugger or another user of CUPTI has it in this process"
            }
            _ => "",
        };
        Err(unavailable(format!("{call} of {} failed: {name} ({code}){reason}", self.origin)))
    }

    /// Subscribes, as the process's only subscriber.
    pub(super) fn subscribe(&self) -> Result<Subscriber> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid for the call; the callback may be called at any time.
        let code = unsafe { (self.subscribe)(&mut raw, not_called, ptr::null_mut()) };
        self.check("cuptiSubscribe", code).map(|()| Subscriber(raw.expose_provenance()))
    }

    pub(super) fn unsubscribe(&self, Subscriber(raw): Subscriber) -> Result<()> {
        // SAFETY: `subscribe` returned it, and it is consumed here.
        let code = unsafe { (self.unsubscribe)(ptr::with_exposed_provenance_mut(raw)) };
        self.check("cuptiUnsubscribe", code)
    }

    /// Registers the buffer callbacks.
    ///
    /// # Safety
    /// * `requested` returns memory of that size, aligned to 8, or null; `completed` takes it back. Both may be called
    ///   from any thread, until the process ends.
    pub(super) unsafe fn register(&self, requested: Requested, completed: Completed) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.register)(requested, completed) };
        self.check("cuptiActivityRegisterCallbacks", code)
    }

    /// Starts the records of a source, for all devices. On an error, [`stop`](Self::stop) it.
    ///
    /// # Errors
    /// `Unsupported` with the cause.
    pub(super) fn start(&self, source: Source) -> Result<()> {
        match source {
            Source::Migrations => {
                self.configure(1)?;
                self.enable(KIND)
            }
            Source::Activities => {
                let mut version = 0;
                // SAFETY: the out pointer is valid for the call.
                self.check("cuptiGetVersion", unsafe { (self.version)(&mut version) })?;
                if version < activity::OLDEST {
                    let text = format!(
                        "{} has version {version}; those of CUDA 11.7 and later name engines",
                        self.origin
                    );
                    return Err(unavailable(text));
                }
                activity::KINDS.into_iter().try_for_each(|kind| self.enable(kind))?;
                for call in activity::UNRECORDED_CALLS {
                    // SAFETY: the call accepts any number. If it is refused, there are more records.
                    let _refused = self.enable_call.map(|enable| unsafe { enable(call, 0) });
                }
                Ok(())
            }
        }
    }

    /// Stops them, and returns the first error.
    pub(super) fn stop(&self, source: Source) -> Result<()> {
        match source {
            Source::Migrations => self.disable(KIND).and(self.configure(0)),
            Source::Activities => activity::KINDS.map(|kind| self.disable(kind)).into_iter().collect(),
        }
    }

    fn enable(&self, kind: u32) -> Result<()> {
        // SAFETY: the call accepts any number.
        self.check("cuptiActivityEnable", unsafe { (self.enable)(kind) })
    }

    fn disable(&self, kind: u32) -> Result<()> {
        // SAFETY: the call accepts any number.
        self.check("cuptiActivityDisable", unsafe { (self.disable)(kind) })
    }

    fn configure(&self, enable: u32) -> Result<()> {
        /// `CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES`.
        const ALL_DEVICES: u32 = 2;
        // Bytes to the device, bytes to the host, faults of the host, faults of the device.
        let mut configs = [1, 2, 3, 4].map(|kind| Config { scope: ALL_DEVICES, kind, device: 0, enable });
        // SAFETY: the array has 4 elements.
        let code = unsafe { (self.configure)(configs.as_mut_ptr(), 4) };
        self.check("cuptiActivityConfigureUnifiedMemoryCounter", code)
    }

    /// Delivers records to `completed` before returning: all of completed work with `forced`, which includes those of work in flight, as incomplete
    /// ones; else those of buffers without any.
    pub(super) fn flush(&self, forced: bool) -> Result<()> {
        // SAFETY: the callbacks were registered.
        self.check("cuptiActivityFlushAll", unsafe { (self.flush)(if forced { FLUSH_FORCED } else { 0 }) })
    }

    /// Returns the time of the records' clock, in nanoseconds.
    pub(super) fn timestamp(&self) -> Result<u64> {
        let mut time = 0;
        // SAFETY: the out pointer is valid for the call.
        self.check("cuptiGetTimestamp", unsafe { (self.timestamp)(&mut time) }).map(|()| time)
    }

    /// Has later driver calls of the calling thread recorded as those of an operation. Returns whether they are.
    pub(super) fn push_operation(&self, id: u64) -> bool {
        // SAFETY: the call accepts any number.
        unsafe { (self.push)(activity::OURS, id) == 0 }
    }

    /// Ends what [`push_operation`](Self::push_operation) began last on the calling thread.
    pub(super) fn pop_operation(&self) {
        // SAFETY: the library accepts a null pointer if the id is not wanted.
        let _ = unsafe { (self.pop)(activity::OURS, ptr::null_mut()) };
    }

    /// Reads a buffer's records and returns how many were not understood: of migrations, and of activities.
    ///
    /// # Safety
    /// * The library completed the buffer with this many valid bytes.
    pub(super) unsafe fn read(
        &self,
        buffer: *mut u8,
        valid: usize,
        mut each: impl FnMut(AnyRecord),
    ) -> [u64; 2] {
        let mut record: *mut Counter = ptr::null_mut();
        let [mut migrations, mut activities] = [0; 2];
        // SAFETY: the caller's promise; the record is null or the one before.
        while unsafe { (self.next)(buffer, valid, &mut record) } == 0 && !record.is_null() {
            let start = record.addr().wrapping_sub(buffer.addr());
            if start.checked_add(size_of::<u32>()).is_none_or(|end| end > valid) {
                return [migrations + 1, activities + 1];
            }
            // SAFETY: the library wrote this many bytes from the buffer's start, within which the record begins.
            let bytes = unsafe { std::slice::from_raw_parts(record.cast::<u8>(), valid - start) };
            if bytes.first_chunk().map(|kind| u32::from_ne_bytes(*kind)) != Some(KIND) {
                match activity::read(bytes) {
                    Activity::Known(record) => each(AnyRecord::Activity(record)),
                    // A kernel's that still runs, for one.
                    Activity::Incomplete => activities += 1,
                    // Another user enabled that kind.
                    Activity::Foreign => {}
                }
                continue;
            }
            if start.checked_add(size_of::<Counter>()).is_none_or(|end| end > valid) {
                return [migrations + 1, activities];
            }
            // SAFETY: the record was just found to lie within the valid bytes.
            let counter = unsafe { record.read_unaligned() };
            match event(&counter) {
                Some(event) => {
                    let times = (counter.start, counter.end);
                    each(AnyRecord::Migration(Record { address: counter.address, event, times }));
                }
                None => migrations += 1,
            }
        }
        [migrations, activities]
    }

    /// Returns how many records were dropped since the last query.
    ///
    /// # Safety
    /// * Context and stream are those of a completed buffer.
    pub(super) unsafe fn dropped(&self, context: *mut c_void, stream: u32) -> u64 {
        let mut count = 0;
        // SAFETY: the caller's promise; the out pointer is valid for the call.
        let code = unsafe { (self.dropped)(context, stream, &mut count) };
        if code == 0 { count as u64 } else { 0 }
    }
}

fn event(counter: &Counter) -> Option<Event> {
    /// `CUpti_ActivityUnifiedMemoryMigrationCause`: an access to the page, or a speculative migration of its
    /// neighbours.
    const BY_FAULTS: [u32; 2] = [2, 3];
    let Counter { kind: KIND, value, source, destination, flags, .. } = *counter else { return None };
    match counter.counter {
        1 => {
            Some(Event::ToDevice { device: destination, bytes: value, by_faults: BY_FAULTS.contains(&flags) })
        }
        2 => Some(Event::ToHost { device: source, bytes: value }),
        3 => Some(Event::CpuFault),
        4 => Some(Event::GpuFault { device: source, groups: value.max(1) }),
        _ => None,
    }
}

fn candidates() -> Vec<OsString> {
    if let Some(path) = std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty()) {
        return vec![path];
    }
    if cfg!(windows) {
        // The file name depends on the version, and Windows has no such counters.
        return Vec::new();
    }
    const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
    let mut all: Vec<OsString> = NAMES.iter().map(OsString::from).collect();
    for toolkit in toolkits(Path::new("/usr/local")) {
        for folder in ["extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib"] {
            let file = toolkit.join(folder).join("libcupti.so");
            if file.exists() {
                all.push(file.into_os_string());
            }
        }
    }
    all
}

/// Returns `cuda` first, then versioned toolkits, newest first.
fn toolkits(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda-")))
        .collect();
    versions.sort();
    versions.push(folder.join("cuda"));
    versions.reverse();
    versions
}

#[cfg(test)]
#[path = "../../tests/unit/cupti.rs"]
mod tests;
