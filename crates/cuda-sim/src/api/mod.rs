//! The driver's functions. Each finds what it is about, is counted, may be hit by a fault, and then does its work.

/// Functions that the driver exports: each body returns an [`CuResult`], of which the caller gets the code, and may use its function's
/// `NAME`. `SYMBOLS` lists the file's functions.
macro_rules! driver {
    ($( $(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block )*) => {
        $( $(#[$attribute])*
        pub(crate) extern "C" fn $name($($argument: $type),*) -> u32 {
            #[allow(dead_code, reason = "few bodies have no use for it")]
            const NAME: &str = stringify!($name);
            let body = || -> $crate::code::CuResult { $body };
            body().err().unwrap_or($crate::code::SUCCESS)
        } )*

        pub(crate) const SYMBOLS: &[(&str, *const ())] = &[$( (stringify!($name), $name as *const ()) ),*];
    };
}

pub(crate) mod batch;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod cupti;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod fill;
pub(crate) mod graph;
pub(crate) mod host_memory;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod stream;

use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    access::Actor,
    clock::{ActorId, Clock},
    code::{self, CuResult},
    memory::{Entry, Kind, Life},
    op::HostCall,
    state::{self, Guard, State},
};

/// An opaque handle (`CUstream`, `CUevent`, ...), looked up in tables only.
pub(crate) type Handle = *mut c_void;

/// A place for an answer, or a value to read, that a C caller passed: valid for the call, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pointer<T>(*mut T);

impl<T: Copy> Pointer<T> {
    /// Stores the answer.
    pub(crate) fn set(self, value: T) -> CuResult {
        self.set_at(0, value)
    }

    /// Stores one element of an answer that is an array.
    pub(crate) fn set_at(self, index: usize, value: T) -> CuResult {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: a `Pointer` is only ever made by a C caller, who promises room for what the function documents.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Reads what the caller passed.
    pub(crate) fn get(self) -> CuResult<T> {
        self.get_at(0)
    }

    /// Reads one element of an array that the caller passed.
    pub(crate) fn get_at(self, index: usize) -> CuResult<T> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: as in `set_at`: the caller promises the elements that the function documents.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place for another type.
    pub(crate) fn cast<U>(self) -> Pointer<U> {
        Pointer(self.0.cast())
    }
}

/// The host function that runs on this thread.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) stream: ActorId,
    pub(crate) actor: Actor,
    pub(crate) clock: Option<Arc<Clock>>,
}

thread_local! {
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// A number of the calling thread's own.
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|number| *number)
}

/// The host function of a stream that this thread is running, if it is.
pub(crate) fn running_callback() -> Option<Running> {
    RUNNING.with_borrow(Option::clone)
}

/// Calls a host function of a stream. The lock must not be held.
pub(crate) fn call_host(HostCall { function, data }: HostCall, running: Running) {
    let before = RUNNING.replace(Some(running));
    // SAFETY: who enqueued the function promised that it can be called once, from any thread, with this data.
    unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
    RUNNING.set(before);
}

/// Locks the driver for a call that no device is blamed for.
pub(crate) fn lock_driver() -> CuResult<Guard> {
    if RUNNING.with_borrow(Option::is_some) {
        return Err(code::NOT_PERMITTED);
    }
    let state = state::lock();
    if state.initialised { Ok(state) } else { Err(code::NOT_INITIALIZED) }
}

/// Waits while another thread's call that frees memory waits for the device and keeps other calls out meanwhile.
fn wait_for_free(state: &mut Guard, device: u32) {
    let this = std::thread::current().id();
    while state.device(device).freeing.is_some_and(|thread| thread != this) {
        state::CHANGED.wait(state);
    }
}

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) context: u64,
    pub(crate) device: u32,
}

impl Scope {
    /// A live allocation of the context.
    pub(crate) fn entry(self, bytes: usize, kind: Kind) -> Entry {
        Entry { bytes, device: self.device, context: self.context, kind, life: Life::Live }
    }
}

/// Counts a call for a device; answers the fault that hits it, or the error that stuck to the context.
pub(crate) fn count_call(state: &mut State, name: &str, device: u32) -> CuResult {
    let faults = &mut state.device_mut(device).faults;
    if let Some(code) = faults.hit(name, true) {
        return Err(code);
    }
    faults.sticky.map_or(Ok(()), Err)?;
    state.graphs.check_unsafe_call(name, thread_number(), CAPTURE_MODE.get())
}

/// Counts a call that an error of the context does not make fail.
pub(crate) fn count_call_despite_error(
    state: &mut State,
    name: &str,
    device: u32,
    countable: bool,
) -> CuResult {
    state.device_mut(device).faults.hit(name, countable).map_or(Ok(()), Err)
}

/// A device by its handle.
pub(crate) fn device_of(state: &State, handle: i32) -> CuResult<u32> {
    let ordinal = u32::try_from(handle).map_err(|_| code::INVALID_DEVICE)?;
    state.devices.get(ordinal as usize).map(|_| ordinal).ok_or(code::INVALID_DEVICE)
}

/// A call about a device that needs no context.
pub(crate) fn on_device(name: &str, handle: i32) -> CuResult<(Guard, u32)> {
    let mut state = lock_driver()?;
    let device = device_of(&state, handle)?;
    count_call_despite_error(&mut state, name, device, true)?;
    Ok((state, device))
}

/// The context on top of this thread's stack, 0 if none.
pub(crate) fn top() -> u64 {
    CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// The calling thread's current context; refuses where there is none or it is gone.
pub(crate) fn current_scope(state: &State) -> CuResult<Scope> {
    let context = top();
    if context == 0 {
        return Err(code::INVALID_CONTEXT);
    }
    let found = state.contexts.get(&context).ok_or(code::CONTEXT_IS_DESTROYED)?;
    Ok(Scope { context, device: found.device })
}

/// A call that works on the current context.
pub(crate) fn on_current(name: &str) -> CuResult<(Guard, Scope)> {
    let mut state = lock_driver()?;
    let scope = current_scope(&state)?;
    wait_for_free(&mut state, scope.device);
    count_call(&mut state, name, scope.device)?;
    Ok((state, scope))
}

/// A stream by its handle; default streams are those of the current context.
pub(crate) fn find_stream(state: &mut State, handle: Handle) -> CuResult<u64> {
    let context = (top() != 0).then(top);
    state.resolve_stream(context, handle.addr() as u64, thread_number())
}

/// A call about a stream; blamed on the stream's device.
pub(crate) fn on_stream(name: &str, handle: Handle) -> CuResult<(Guard, u64)> {
    let mut state = lock_driver()?;
    let stream = find_stream(&mut state, handle)?;
    let device = state.stream(stream)?.device;
    wait_for_free(&mut state, device);
    count_call(&mut state, name, device)?;
    crate::graph::check_stream_call(&mut state, name, stream)?;
    Ok((state, stream))
}

/// A call that needs a current context and enqueues on a stream, which may be another context's.
pub(crate) fn on_current_stream(name: &str, handle: Handle) -> CuResult<(Guard, Scope, u64)> {
    let scope = current_scope(&*lock_driver()?)?;
    let (state, stream) = on_stream(name, handle)?;
    Ok((state, scope, stream))
}

/// The error that stuck to a device while work was being waited for.
pub(crate) fn sticky_error(state: &State, device: u32) -> CuResult {
    state.device(device).faults.sticky.map_or(Ok(()), Err)
}
