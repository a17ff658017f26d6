//! An adaptor that asks the program for help when memory is short, and then asks again.
//!
//! Every method may be called from any thread. No lock is held while the program's function runs, so it may use this resource
//! and any stream.

use std::{cell::RefCell, fmt};

use transload_core::{Error, ErrorKind, MemoryShortage, RawBuffer, Result};

use super::MemoryResource;

thread_local! {
    /// The resources, by address, in whose callbacks this thread is: a request from there is not helped by itself.
    static IN_CALLBACKS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function where the wrapped resource answers `OutOfMemory`, and asks again if the function says that it freed
/// something: up to eight times for a request, unless told otherwise. Every other error is passed on.
pub struct FailureCallbackResource<R, F> {
    upstream: R,
    callback: F,
    retries: u32,
}

impl<R, F> FailureCallbackResource<R, F>
where
    R: MemoryResource,
    F: Fn(&MemoryShortage) -> bool + Send + Sync + 'static,
{
    /// Calls `callback` with the numbers of the request. It may free memory, also of this resource, and answers whether the
    /// request is worth another try. What it asks of this resource on its own thread is answered without a further callback.
    #[must_use]
    pub fn new(upstream: R, callback: F) -> Self {
        const RETRIES: u32 = 8;
        Self { upstream, callback, retries: RETRIES }
    }

    /// At most so many calls of the function for one request.
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    fn helps(&self, error: &Error, bytes: usize) -> bool {
        let unknown = MemoryShortage { requested: bytes as u64, free: None, total: None };
        let shortage = error.memory_shortage().unwrap_or(unknown);
        let Some(_inside) = Inside::enter(std::ptr::from_ref(self).addr()) else { return false };
        (self.callback)(&shortage)
    }
}

/// While it lives, this thread is in the callback of one resource; also where that panics.
struct Inside;

impl Inside {
    /// `None` where the thread is in it already, or is ending.
    fn enter(resource: usize) -> Option<Self> {
        let entered = IN_CALLBACKS.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            let is_new = !inside.contains(&resource);
            if is_new {
                inside.push(resource);
            }
            is_new
        });
        // Made only where it is new: its drop leaves the callback.
        entered.is_ok_and(|is_new| is_new).then(|| Self)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ending = IN_CALLBACKS.try_with(|inside| inside.borrow_mut().pop());
    }
}

// SAFETY: a segment is passed on as the wrapped resource gave it.
unsafe impl<R, F> MemoryResource for FailureCallbackResource<R, F>
where
    R: MemoryResource,
    F: Fn(&MemoryShortage) -> bool + Send + Sync + 'static,
{
    as_upstream!(upstream: place device trim info);

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        let mut left = self.retries;
        loop {
            match self.upstream.allocate_segment(bytes) {
                Err(error)
                    if error.kind() == ErrorKind::OutOfMemory && left > 0 && self.helps(&error, bytes) =>
                {
                    left -= 1;
                }
                other => return other,
            }
        }
    }
}

impl<R, F> fmt::Debug for FailureCallbackResource<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureCallbackResource").field("retries", &self.retries).finish_non_exhaustive()
    }
}
