//! Puts off the frees that wait for the whole device while a stream waits for the host.

use parking_lot::{Condvar, Mutex};

/// While a value of this type lives, memory that the driver frees only by waiting for the device is kept: pinned, mapped and
/// unified memory, registrations, and device memory where there are no pools. It is freed when the last value is dropped.
///
/// Hold one while a stream waits for something that the host has still to do, for example a host function or a word in memory.
/// Without it, a buffer that any thread drops meanwhile can stop the program: the driver's call that frees it waits for the
/// stream, other driver calls may wait for that call, and the thread that should let the stream go on may be making one.
///
/// Holds for all devices of the process. Meanwhile [`CudaMemoryManager::drain`](crate::CudaMemoryManager::drain) blocks, and an
/// allocation that is short of memory fails, if they need such memory. Usable from, and dropped on, any thread.
#[derive(Debug)]
#[must_use = "frees are put off until this is dropped"]
pub struct FreeDeferral(());

struct Frees {
    deferrals: usize,
    /// Frees in a driver call.
    running: usize,
}

static FREES: Mutex<Frees> = Mutex::new(Frees { deferrals: 0, running: 0 });
static CHANGED: Condvar = Condvar::new();

impl FreeDeferral {
    /// Begins to put off frees. Blocks until those that are already in the driver are done, so begin before the stream waits.
    pub fn begin() -> Self {
        let mut frees = FREES.lock();
        frees.deferrals += 1;
        while frees.running > 0 && !transload_core::mutant!("memory/deferral-waits-for-frees") {
            CHANGED.wait(&mut frees);
        }
        Self(())
    }
}

impl Drop for FreeDeferral {
    fn drop(&mut self) {
        FREES.lock().deferrals -= 1;
        CHANGED.notify_all();
    }
}

/// A free in a driver call; what the call runs must not run code of the user's, which may begin a deferral.
pub(crate) struct Running(());

impl Running {
    /// Blocks while frees are put off.
    pub(crate) fn begin() -> Self {
        let mut frees = FREES.lock();
        while frees.deferrals > 0 && !transload_core::mutant!("memory/frees-are-deferred") {
            CHANGED.wait(&mut frees);
        }
        frees.running += 1;
        Self(())
    }

    /// `None` while frees are put off.
    pub(crate) fn try_begin() -> Option<Self> {
        let mut frees = FREES.lock();
        if frees.deferrals > 0 && !transload_core::mutant!("memory/registrations-are-deferred") {
            return None;
        }
        frees.running += 1;
        Some(Self(()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        FREES.lock().running -= 1;
        CHANGED.notify_all();
    }
}
