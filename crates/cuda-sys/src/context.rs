//! A device's primary context, bound to the calling thread for the duration of a call.

use std::{
    cell::Cell,
    marker::PhantomData,
    ptr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread::{self, LocalKey},
    time::Duration,
};

use cust::sys::CUcontext;

use crate::{Device, DriverError, RelaxedCapture, Result, check, driver::code, ffi, record_drop_error};

/// A device's primary context. PyTorch, cudarc, cust and the CUDA runtime share it, so memory, streams and events can
/// be passed between them.
///
/// Clones share one reference; the context is released when the last one is dropped. Usable from any thread.
#[derive(Clone, Debug)]
pub struct Context {
    /// Stored inline because each call compares it.
    raw: CUcontext,
    shared: Arc<Retained>,
}

// SAFETY: a context handle may be used from any thread; binding it is per thread and done by `enter`.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronises access to a context itself.
unsafe impl Sync for Context {}

#[derive(Debug)]
struct Retained {
    device: Device,
    /// The first error that made the context unusable.
    loss: OnceLock<Loss>,
    peers: Arc<Peers>,
}

/// Ordinals of the devices to whose memory access was enabled. All values of a context share it.
type Peers = Mutex<Vec<u32>>;

/// Returns the peers of a context that the caller retains: those that values of it, which retain it too, know of.
fn peers_of(raw: CUcontext) -> Arc<Peers> {
    static KNOWN: Mutex<Vec<(usize, Weak<Peers>)>> = Mutex::new(Vec::new());
    let mut known = lock(&KNOWN);
    known.retain(|(_, peers)| peers.strong_count() > 0);
    let own = known.iter().find(|(context, _)| *context == raw.addr()).and_then(|(_, peers)| peers.upgrade());
    own.unwrap_or_else(|| {
        let peers = Arc::<Peers>::default();
        known.push((raw.addr(), Arc::downgrade(&peers)));
        peers
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds one panics in between.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cause that made a context unusable.
pub type Loss = Arc<dyn std::error::Error + Send + Sync>;

/// Per-thread flag for one kind of context-independent call: if set, the call must bind its own context first. Each kind of call
/// has its own flag, because drivers differ in which calls they accept in which context.
pub type ContextFallback = LocalKey<Cell<bool>>;

/// Makes a context-independent call (advice on a range, a copy on a stream that is not a default stream) in the current context,
/// whichever that is: querying the current context takes ten times as long as this function. Returns `None` without calling if
/// `fallback` is set for this thread; use [`Context::enter_fallback`] then.
#[inline]
pub fn try_in_current<T>(fallback: &'static ContextFallback, call: impl FnOnce() -> T) -> Option<T> {
    if fallback.get() { None } else { Some(call()) }
}

impl Context {
    /// Retains the device's primary context, creating it if the process has none (about 200 ms on a data-centre GPU).
    /// The calling thread's current context does not change.
    ///
    /// # Errors
    /// The driver's code.
    pub fn primary(device: Device) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid and the handle came from the driver.
        check("cuDevicePrimaryCtxRetain", unsafe {
            ffi::cuDevicePrimaryCtxRetain(&mut raw, device.as_raw())
        })?;
        Ok(Self { raw, shared: Arc::new(Retained { device, loss: OnceLock::new(), peers: peers_of(raw) }) })
    }

    /// Returns the device of the context.
    #[must_use]
    pub fn device(&self) -> Device {
        self.shared.device
    }

    /// Records why the context is unusable, and returns whether this is the first cause; a later one is ignored. All clones share it.
    pub fn record_loss(&self, cause: Loss) -> bool {
        self.shared.loss.set(cause).is_ok()
    }

    /// Returns the first recorded cause of loss, if any. Does not call the driver.
    #[must_use]
    #[inline]
    pub fn loss(&self) -> Option<&Loss> {
        self.shared.loss.get()
    }

    /// Returns the driver's handle, valid while `self` lives.
    #[must_use]
    pub fn as_raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes this context current on the calling thread until the guard is dropped. Does nothing if it already is.
    ///
    /// # Errors
    /// The driver's code.
    #[inline]
    pub fn enter(&self) -> Result<ContextGuard<'_>> {
        let mut current = ptr::null_mut();
        // SAFETY: the out pointer is valid for the call.
        let code = unsafe { ffi::cuCtxGetCurrent(&mut current) };
        if code == code::SUCCESS && current == self.raw {
            return Ok(ContextGuard {
                pushed: false,
                had_none: false,
                context: PhantomData,
                not_send: PhantomData,
            });
        }
        self.push(code, current.is_null())
    }

    /// Like [`enter`](Self::enter), for a call that [`try_in_current`] skipped or that the driver rejected. If this
    /// context [was already current](ContextGuard::was_current), the rejection is final; otherwise retry the call.
    /// Driver 580 returns `CUDA_ERROR_INVALID_VALUE` for a copy to memory of another device than the current context's.
    ///
    /// # Errors
    /// As for `enter`.
    #[cold]
    pub fn enter_fallback(&self, fallback: &'static ContextFallback) -> Result<ContextGuard<'_>> {
        let bound = self.enter()?;
        fallback.set(!bound.was_current());
        Ok(bound)
    }

    /// Makes the driver call `name` in this context, without invalidating captures of other threads. `call` returns the
    /// driver's code.
    ///
    /// # Errors
    /// The driver's code.
    pub fn call(&self, name: &'static str, call: impl FnOnce() -> u32) -> Result<()> {
        let _bound = self.enter()?;
        let _capture = RelaxedCapture::enter()?;
        check(name, call())
    }

    /// `queried` is the result of querying the current context, which is not this one.
    #[inline(never)]
    fn push(&self, queried: u32, had_none: bool) -> Result<ContextGuard<'_>> {
        check("cuCtxGetCurrent", queried)?;
        // SAFETY: the context is retained by `self`, which outlives the guard.
        check("cuCtxPushCurrent_v2", unsafe { ffi::cuCtxPushCurrent_v2(self.raw) })?;
        Ok(ContextGuard { pushed: true, had_none, context: PhantomData, not_send: PhantomData })
    }

    /// Enables access from this context to the memory of `peer`, one way, for the life of the context. Repeated calls
    /// have no effect. Stream-ordered pools grant access separately.
    ///
    /// # Errors
    /// The driver's code, for example if the devices are no peers or have too many.
    pub fn enable_peer(&self, peer: &Self) -> Result<()> {
        let _bound = self.enter()?;
        let _capture = RelaxedCapture::enter()?;
        // SAFETY: both contexts are retained; the flags must be 0.
        match unsafe { ffi::cuCtxEnablePeerAccess(peer.as_raw(), 0) } {
            code::PEER_ACCESS_ALREADY_ENABLED => {}
            answer => check("cuCtxEnablePeerAccess", answer)?,
        }
        let (mut peers, ordinal) = (lock(&self.shared.peers), peer.device().ordinal());
        if !peers.contains(&ordinal) {
            peers.push(ordinal);
        }
        Ok(())
    }

    /// Returns whether [`enable_peer`](Self::enable_peer) of a value of this context enabled access to the memory of a device, which is that of
    /// `cuMemAlloc`: the driver cannot be asked. Pools grant access separately.
    #[must_use]
    pub fn has_peer(&self, ordinal: u32) -> bool {
        lock(&self.shared.peers).contains(&ordinal)
    }

    /// Returns free and total bytes of device memory.
    ///
    /// # Errors
    /// The driver's code.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both out pointers are valid for the call.
        self.call("cuMemGetInfo_v2", || unsafe { ffi::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Returns the error of a call that may be repeated, or, if the driver answers nothing else about the device either, one that
    /// [is sticky](DriverError::is_sticky): what ends a wait that would fail for ever. Drivers have no code of their own for a GPU that has
    /// fallen off the bus: many answer each call with `CUDA_ERROR_UNKNOWN`, which after a single call says nothing.
    ///
    /// Blocks for a tenth of a second before it finds that; not if a [loss](Self::loss) is recorded, nor where it finds the device well. May be
    /// called from any thread.
    #[must_use]
    pub fn judge(&self, error: DriverError) -> DriverError {
        /// Questions, and the pause between two of them.
        const QUESTIONS: (u32, Duration) = (20, Duration::from_millis(5));
        if error.is_sticky() {
            return error;
        }
        for question in 0..if self.loss().is_some() { 0 } else { QUESTIONS.0 } {
            if question > 0 {
                thread::park_timeout(QUESTIONS.1);
            }
            match self.memory_info() {
                Err(sticky) if sticky.is_sticky() => return sticky,
                Err(unknown) if unknown.code() == Some(code::UNKNOWN) => {}
                // Any other error is of this call, such as one in a stream's callback, where the driver permits none.
                _ => return error,
            }
        }
        DriverError::Unresponsive { ordinal: self.device().ordinal(), cause: Box::new(error) }
    }

    /// Like [`judge`](Self::judge), for a call that is not repeated: only `CUDA_ERROR_UNKNOWN`, which a driver that is stuck answers, is judged.
    #[must_use]
    pub fn judge_unknown(&self, error: DriverError) -> DriverError {
        if error.code() == Some(code::UNKNOWN) { self.judge(error) } else { error }
    }

    /// Returns the numerically greatest (least urgent) and least (most urgent) stream priority.
    ///
    /// # Errors
    /// The driver's code.
    pub fn stream_priority_range(&self) -> Result<(i32, i32)> {
        let _bound = self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both out pointers are valid for the call.
        check("cuCtxGetStreamPriorityRange", unsafe {
            ffi::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        Ok((least, greatest))
    }

    /// Blocks until all work of the context is complete. For shutdown only, never for a transfer.
    ///
    /// # Errors
    /// The driver's code, including errors of earlier asynchronous work.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a context is current.
        self.call("cuCtxSynchronize", || unsafe { ffi::cuCtxSynchronize() })
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        if Arc::strong_count(&self.peers) == 1 {
            // The driver may give a later context this one's address.
            lock(&self.peers).clear();
        }
        // SAFETY: this releases the one reference that `primary` retained.
        let code = unsafe { ffi::cuDevicePrimaryCtxRelease_v2(self.device.as_raw()) };
        record_drop_error(check("cuDevicePrimaryCtxRelease_v2", code));
    }
}

/// Keeps a context current on this thread; on drop the previous one is restored.
#[must_use = "the context is bound only while the guard lives"]
#[derive(Debug)]
pub struct ContextGuard<'a> {
    pushed: bool,
    had_none: bool,
    context: PhantomData<&'a Context>,
    /// The driver's context stack is per thread.
    not_send: PhantomData<*const ()>,
}

impl ContextGuard<'_> {
    /// Returns whether the context was already current.
    #[must_use]
    #[inline]
    pub fn was_current(&self) -> bool {
        !self.pushed
    }

    /// Returns whether no context was current before.
    #[must_use]
    #[inline]
    pub fn had_none(&self) -> bool {
        self.had_none
    }

    #[inline(never)]
    fn pop(&self) {
        let mut popped = ptr::null_mut();
        // SAFETY: `enter` pushed one entry on this thread and guards cannot leave their thread.
        let code = unsafe { ffi::cuCtxPopCurrent_v2(&mut popped) };
        record_drop_error(check("cuCtxPopCurrent_v2", code));
    }
}

impl Drop for ContextGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            self.pop();
        }
    }
}
