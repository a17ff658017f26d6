//! A hook through which the host's own accesses to buffers can be watched.
//!
//! Device work passes through a driver that can be watched or simulated; a host view of a buffer is plain memory access.
//! Every view that this workspace hands out announces itself here, so that a race checker sees both sides. Without a
//! hook it costs one relaxed load.

use std::sync::atomic::{AtomicPtr, Ordering};

/// What the host does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostAccess {
    /// The host may read the range from now on.
    Read,
    /// The host may read and write the range from now on.
    Write,
}

/// Called on the accessing thread, before the access, with the range's address and length in bytes.
pub type Hook = fn(address: usize, bytes: usize, access: HostAccess);

static HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Installs the hook for the process; the last one wins. A panic of the hook unwinds out of the call that accesses the memory: the
/// opening of a view, say, or the submission of a transfer that the calling thread copies at once. Under an operation of a queue
/// or a staged transfer it is that one's failure.
pub fn set_hook(hook: Hook) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// The hook, if one is installed.
#[inline]
pub(crate) fn hook() -> Option<Hook> {
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: the only non-null value ever stored is a `Hook` cast to a pointer by `set_hook`.
    (!hook.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), Hook>(hook) })
}

/// Announces an access of the host to memory that a device may know. Called by every host view of this workspace;
/// frameworks that write through raw pointers may call it too.
#[inline]
pub fn note(address: usize, bytes: usize, access: HostAccess) {
    if let Some(hook) = hook() {
        hook(address, bytes, access);
    }
}
