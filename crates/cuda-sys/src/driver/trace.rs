//! A trace of driver calls, for real and simulated drivers.
//!
//! When off, it costs one relaxed load per call. When on, every call of the process is recorded with its arguments;
//! tests use it to check which calls a method makes.
//!
//! ```
//! # #[cfg(any(target_os = "linux", windows))] {
//! let trace = transload_cuda_sys::trace::start();
//! let _ = transload_cuda_sys::Driver::get();
//! for call in trace.calls() {
//!     println!("{call}");
//! }
//! # }
//! ```

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
};

use parking_lot::Mutex;

/// Number of active traces, plus one if an observer is set.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static CALLS: Mutex<Log> = Mutex::new(Log { calls: Vec::new(), dropped: 0, traces: 0 });
static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Called with name and code after each driver call. Must not make driver calls.
pub type Observer = fn(&'static str, u32);

struct Log {
    calls: Vec<Call>,
    /// Number of calls removed from the front of the log.
    dropped: usize,
    traces: usize,
}

/// One driver call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Name of the function.
    pub name: &'static str,
    /// Returned code.
    pub code: u32,
    /// Arguments as integers, pointers as addresses; a structure passed by value is 0.
    pub arguments: Vec<u64>,
    /// Calling thread.
    pub thread: ThreadId,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{argument:#x}")?;
        }
        write!(f, ") = {}", self.code)
    }
}

/// An active trace, which ends when dropped. Several may overlap.
#[derive(Debug)]
#[must_use = "the trace ends when this is dropped"]
pub struct Trace {
    from: usize,
}

/// Starts a trace of all driver calls of the process.
pub fn start() -> Trace {
    let mut log = CALLS.lock();
    log.traces += 1;
    ACTIVE.fetch_add(1, Ordering::SeqCst);
    Trace { from: log.dropped + log.calls.len() }
}

/// Sets the process's observer of driver calls. Only the first one set takes effect.
pub fn observe(observer: Observer) {
    if OBSERVER.set(observer).is_ok() {
        ACTIVE.fetch_add(1, Ordering::SeqCst);
    }
}

impl Trace {
    /// Returns every call that returned since the trace began, in order of return.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        let log = CALLS.lock();
        let start = self.from.saturating_sub(log.dropped);
        log.calls.get(start..).map(<[Call]>::to_vec).unwrap_or_default()
    }

    /// Returns the calls of the current thread.
    #[must_use]
    pub fn calls_of_this_thread(&self) -> Vec<Call> {
        let this = thread::current().id();
        self.calls().into_iter().filter(|call| call.thread == this).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut log = CALLS.lock();
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
        log.traces -= 1;
        if log.traces == 0 {
            log.dropped += log.calls.len();
            log.calls = Vec::new();
        }
    }
}

#[inline]
pub(super) fn record(name: &'static str, code: u32, arguments: impl FnOnce() -> Vec<u64>) {
    if ACTIVE.load(Ordering::Relaxed) != 0 {
        append(name, code, arguments);
    }
}

/// A separate function, so that the caller stays short.
#[cold]
#[inline(never)]
fn append(name: &'static str, code: u32, arguments: impl FnOnce() -> Vec<u64>) {
    if let Some(observer) = OBSERVER.get() {
        observer(name, code);
    }
    let mut log = CALLS.lock();
    if log.traces > 0 {
        log.calls.push(Call { name, code, arguments: arguments(), thread: thread::current().id() });
    }
}

/// Conversion of a driver function's argument to one integer.
pub(super) trait Word {
    fn word(&self) -> u64;
}

impl<T> Word for *const T {
    fn word(&self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Word for *mut T {
    fn word(&self) -> u64 {
        self.addr() as u64
    }
}

macro_rules! words {
    ($($type:ty),* => |$value:ident| $word:expr) => { $(
        impl Word for $type {
            #[allow(clippy::cast_sign_loss, clippy::cast_lossless, clippy::unnecessary_cast, trivial_numeric_casts)]
            fn word(&self) -> u64 {
                let $value = self;
                $word
            }
        }
    )* };
}
// Sign extension is wanted: -1 is the host's ordinal.
words!(u8, u16, u32, u64, usize, i32 => |value| *value as u64);
words!(f32 => |value| u64::from(value.to_bits()));
words!(super::newer::MemLocation => |at| (u64::from(at.kind) << 32) | u64::from(at.id.cast_unsigned()));
words!(
    cust::sys::CUipcEventHandle, cust::sys::CUipcMemHandle, cust::sys::CUhostFn, cust::sys::CUstreamCallback,
    cust::sys::CUoccupancyB2DSize => |_opaque| 0
);
