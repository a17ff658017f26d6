//! Defers frees that synchronise with the device while a stream waits for the host.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Defers frees that synchronise with the device: pinned, mapped and unified memory, registrations with the pageable memory that they
/// last for, and device memory without pools. They are freed when the last value is dropped.
///
/// Hold one while a stream waits for the host, for example for a host function or a word in memory. Otherwise a buffer
/// dropped by any thread can deadlock the program: the free waits for the stream, other driver calls may wait for the
/// free, and the thread that should release the stream may be making such a call.
///
/// Applies to all devices of the process. Meanwhile [`CudaMemoryManager::drain`](crate::CudaMemoryManager::drain) and
/// [`RegistrationCache::drain`](crate::RegistrationCache::drain) block, and with them the drain of a backend, and an allocation that is short of memory fails, if they need deferred memory. Usable from any thread.
#[derive(Debug)]
#[must_use = "frees are deferred until this is dropped"]
pub struct FreeDeferral(());

struct Frees {
    deferrals: usize,
    /// Number of frees inside a driver call.
    running: usize,
    /// Number of frees that wait for the deferrals to end.
    waiting: usize,
}

static FREES: Mutex<Frees> = Mutex::new(Frees { deferrals: 0, running: 0, waiting: 0 });
static CHANGED: Condvar = Condvar::new();

impl FreeDeferral {
    /// Starts deferring frees. Blocks until frees already inside the driver return, so call it before the stream waits.
    pub fn begin() -> Self {
        let mut frees = FREES.lock();
        frees.deferrals += 1;
        while frees.running > 0 && !transload_core::mutant!("memory/deferral-waits-for-frees") {
            CHANGED.wait(&mut frees);
        }
        Self(())
    }

    /// Like [`begin`](Self::begin), but does not block: returns `None` while a free is inside the driver or waits for deferrals to
    /// end, so that deferrals in close succession do not defer frees for ever.
    #[must_use]
    pub fn try_begin() -> Option<Self> {
        let mut frees = FREES.lock();
        if !frees.is_quiet() && !transload_core::mutant!("memory/frees-come-in-between") {
            return None;
        }
        frees.deferrals += 1;
        Some(Self(()))
    }

    /// Returns whether [`try_begin`](Self::try_begin) would succeed now.
    #[must_use]
    pub fn can_begin() -> bool {
        FREES.lock().is_quiet()
    }
}

impl Frees {
    /// Returns whether no free is inside the driver or waits.
    fn is_quiet(&self) -> bool {
        self.running + self.waiting == 0
    }
}

impl Drop for FreeDeferral {
    fn drop(&mut self) {
        FREES.lock().deferrals -= 1;
        CHANGED.notify_all();
    }
}

/// A free inside a driver call. No user code may run meanwhile, since it could start a deferral.
pub(crate) struct Running(());

impl Running {
    /// Blocks while frees are deferred.
    pub(crate) fn begin() -> Self {
        let mut frees = FREES.lock();
        frees.waiting += 1;
        while frees.deferrals > 0 && !transload_core::mutant!("memory/frees-are-deferred") {
            CHANGED.wait(&mut frees);
        }
        frees.waiting -= 1;
        frees.running += 1;
        Self(())
    }

    /// Blocks while frees are deferred, for at most this time, and returns `None` after it.
    pub(crate) fn begin_within(limit: Duration) -> Option<Self> {
        let mut frees = FREES.lock();
        if !transload_core::mutant!("memory/registrations-are-deferred") {
            frees.waiting += 1;
            CHANGED.wait_while_for(&mut frees, |frees| frees.deferrals > 0, limit);
            frees.waiting -= 1;
            if frees.deferrals > 0 {
                return None;
            }
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
