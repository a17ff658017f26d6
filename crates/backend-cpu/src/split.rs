//! One large operation done by several workers: each takes the next piece until none is left.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use transload_core::{Error, ErrorKind, Operation, Result};

use crate::copy::{self, Cut};

/// An operation that is being shared out. Lives on the stack of the worker that leads it.
pub(crate) struct Split<'a> {
    operation: &'a Operation<'a>,
    cut: Cut,
    next: AtomicUsize,
    failed: AtomicBool,
}

impl<'a> Split<'a> {
    pub(crate) fn new(operation: &'a Operation<'a>, cut: Cut) -> Self {
        Self { operation, cut, next: AtomicUsize::new(0), failed: AtomicBool::new(false) }
    }

    /// Takes pieces until none is left, or `leave` says so after one; answers whether none is left.
    ///
    /// # Safety
    /// As for [`copy::perform`], from all threads that take part together.
    pub(crate) unsafe fn take_part(&self, leave: impl Fn() -> bool) -> bool {
        while let Some(piece) = self.next_piece() {
            // SAFETY: the counter hands every piece out once, and pieces do not overlap.
            let work = AssertUnwindSafe(|| unsafe { copy::perform_units(self.operation, piece) });
            if !matches!(catch_unwind(work), Ok(Ok(()))) {
                self.failed.store(true, Ordering::Relaxed);
            }
            if leave() {
                return false;
            }
        }
        true
    }

    fn next_piece(&self) -> Option<Range<usize>> {
        self.cut.piece(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// How all the pieces went; to be asked when everyone has left.
    pub(crate) fn outcome(&self) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            let text = "a piece of a parallel copy failed; the destination is undefined";
            return Err(Error::new(ErrorKind::Interrupted, text));
        }
        Ok(())
    }
}

/// A split as the other workers find it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitRef(*const Split<'static>);

// SAFETY: a split may be shared between threads; that it is still there is what `get` asks the caller to promise.
unsafe impl Send for SplitRef {}

impl SplitRef {
    pub(crate) fn new(split: &Split<'_>) -> Self {
        Self(std::ptr::from_ref(split).cast())
    }

    /// The split.
    ///
    /// # Safety
    /// * Its leader must not have returned: the caller is counted among its helpers, and the leader waits for them.
    pub(crate) unsafe fn get<'a>(self) -> &'a Split<'a> {
        // SAFETY: the caller's promise.
        unsafe { &*self.0.cast() }
    }
}
