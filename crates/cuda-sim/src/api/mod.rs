//! The driver functions. Each resolves its objects, counts the call, applies injected faults, and then does its work.

/// Defines exported functions. Each body returns a [`CuResult`], whose code the function returns, and may use the
/// function's `NAME`. `SYMBOLS` lists the functions of the file.
macro_rules! driver {
    ($( $(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block )*) => {
        $( $(#[$attribute])*
        pub(crate) extern "C" fn $name($($argument: $type),*) -> u32 {
            const NAME: &str = stringify!($name);
            let _call = $crate::call_counts::Call::begin(NAME);
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
pub(crate) mod external;
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
    call_counts::Call,
    clock::{ActorId, Clock},
    code::{self, CuResult},
    memory::{Entry, Kind, Life},
    op::HostCall,
    state::{self, Guard, State},
};

/// An opaque handle (`CUstream`, `CUevent`, ...), which is looked up but never dereferenced.
pub(crate) type Handle = *mut c_void;

/// A pointer argument of a C caller: valid for the call, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pointer<T>(*mut T);

impl<T: Copy> Pointer<T> {
    /// Stores a result.
    pub(crate) fn set(self, value: T) -> CuResult {
        self.set_at(0, value)
    }

    /// Stores an element of a result array.
    pub(crate) fn set_at(self, index: usize, value: T) -> CuResult {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: a `Pointer` is only ever made by a C caller, who promises room for what the function documents.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Reads an argument.
    pub(crate) fn get(self) -> CuResult<T> {
        self.get_at(0)
    }

    /// Reads an element of an argument array.
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

    /// Casts the pointer to another type.
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

/// Returns a number unique to the calling thread.
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|number| *number)
}

/// Returns the host function that runs on this thread, if any.
pub(crate) fn running_callback() -> Option<Running> {
    RUNNING.with_borrow(Option::clone)
}

/// Calls a host function. The lock must not be held.
pub(crate) fn call_host(HostCall { function, data }: HostCall, running: Running) {
    let before = RUNNING.replace(Some(running));
    let _call = Call::leave();
    // SAFETY: the caller of `cuLaunchHostFunc` promises that the function can be called once with this data, from any
    // thread.
    unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
    RUNNING.set(before);
}

/// Locks the driver for a call that is not attributed to a device.
pub(crate) fn lock_driver() -> CuResult<Guard> {
    if RUNNING.with_borrow(Option::is_some) {
        return Err(code::NOT_PERMITTED);
    }
    let state = state::lock();
    if state.initialised { Ok(state) } else { Err(code::NOT_INITIALIZED) }
}

/// Waits while another thread's call frees memory of the device and blocks other calls.
fn wait_for_free(state: &mut Guard, device: u32) {
    let this = std::thread::current().id();
    while state.device(device).freeing.is_some_and(|thread| thread != this) {
        state::CHANGED.wait(state);
    }
}

/// The current context and its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) context: u64,
    pub(crate) device: u32,
}

impl Scope {
    /// Returns the entry of a live allocation in the context.
    pub(crate) fn entry(self, bytes: usize, kind: Kind) -> Entry {
        Entry { bytes, device: self.device, context: self.context, kind, life: Life::Live }
    }
}

/// Counts a call for a device. Returns the injected fault or sticky error that applies, if any.
pub(crate) fn count_call(state: &mut State, name: &str, device: u32) -> CuResult {
    let faults = &mut state.device_mut(device).faults;
    if let Some(code) = faults.hit(name, true) {
        return Err(code);
    }
    faults.sticky.map_or(Ok(()), Err)?;
    state.graphs.check_unsafe_call(name, thread_number(), CAPTURE_MODE.get())
}

/// Like [`count_call`], but ignores sticky errors.
pub(crate) fn count_call_despite_error(
    state: &mut State,
    name: &str,
    device: u32,
    countable: bool,
) -> CuResult {
    state.device_mut(device).faults.hit(name, countable).map_or(Ok(()), Err)
}

/// Resolves a device handle.
pub(crate) fn device_of(state: &State, handle: i32) -> CuResult<u32> {
    let ordinal = u32::try_from(handle).map_err(|_| code::INVALID_DEVICE)?;
    state.devices.get(ordinal as usize).map(|_| ordinal).ok_or(code::INVALID_DEVICE)
}

/// Starts a call on a device; needs no context.
pub(crate) fn on_device(name: &str, handle: i32) -> CuResult<(Guard, u32)> {
    let mut state = lock_driver()?;
    let device = device_of(&state, handle)?;
    count_call_despite_error(&mut state, name, device, true)?;
    Ok((state, device))
}

/// Returns the context on top of this thread's stack, 0 if none.
pub(crate) fn top() -> u64 {
    CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Returns the calling thread's current context. Fails if there is none or it was destroyed.
pub(crate) fn current_scope(state: &State) -> CuResult<Scope> {
    let context = top();
    if context == 0 {
        return Err(code::INVALID_CONTEXT);
    }
    let found = state.contexts.get(&context).ok_or(code::CONTEXT_IS_DESTROYED)?;
    Ok(Scope { context, device: found.device })
}

/// Starts a call that needs a current context.
pub(crate) fn on_current(name: &str) -> CuResult<(Guard, Scope)> {
    let mut state = lock_driver()?;
    let scope = current_scope(&state)?;
    wait_for_free(&mut state, scope.device);
    count_call(&mut state, name, scope.device)?;
    Ok((state, scope))
}

/// Resolves a stream handle; default streams are those of the current context.
pub(crate) fn find_stream(state: &mut State, handle: Handle) -> CuResult<u64> {
    let context = (top() != 0).then(top);
    state.resolve_stream(context, handle.addr() as u64, thread_number())
}

/// Starts a call on a stream, attributed to the stream's device.
pub(crate) fn on_stream(name: &str, handle: Handle) -> CuResult<(Guard, u64)> {
    let mut state = lock_driver()?;
    let stream = find_stream(&mut state, handle)?;
    let device = state.stream(stream)?.device;
    wait_for_free(&mut state, device);
    count_call(&mut state, name, device)?;
    crate::graph::check_stream_call(&mut state, name, stream)?;
    Ok((state, stream))
}

/// Starts a call that needs a current context and enqueues on a stream, which may be another context's.
pub(crate) fn on_current_stream(name: &str, handle: Handle) -> CuResult<(Guard, Scope, u64)> {
    let scope = current_scope(&*lock_driver()?)?;
    let (state, stream) = on_stream(name, handle)?;
    Ok((state, scope, stream))
}

/// Returns the sticky error that a device may have got during a wait.
pub(crate) fn sticky_error(state: &State, device: u32) -> CuResult {
    state.device(device).faults.sticky.map_or(Ok(()), Err)
}
