//! A hook for observing the host's own accesses to buffers.
//!
//! Device work passes through a driver that can be observed or simulated; a host view of a buffer is plain
//! memory access. All views of this workspace report themselves here, so that a race checker sees both sides.
//! Without a hook this costs one atomic load.

use std::sync::atomic::{AtomicPtr, Ordering};

/// The host's access to a range.
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

/// Installs the hook for the process, replacing any other. It must return without waiting: it calls neither a driver nor what waits for
/// work, since a device's work or another thread may wait for the access. A panic of the hook unwinds out of the call that
/// accesses the memory: opening a view, or submitting a transfer that the calling thread copies itself. In a
/// queue's operation or a staged transfer, it becomes that operation's failure.
pub fn set_hook(hook: Hook) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// Returns the installed hook, if any.
#[inline]
pub(crate) fn hook() -> Option<Hook> {
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: the only non-null value ever stored is a `Hook` cast to a pointer by `set_hook`.
    (!hook.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), Hook>(hook) })
}

/// Reports an access by the host to memory that a device may use. Called by every host view of this
/// workspace; frameworks that write through raw pointers may call it, too.
#[inline]
pub fn note(address: usize, bytes: usize, access: HostAccess) {
    if let Some(hook) = hook() {
        hook(address, bytes, access);
    }
}
