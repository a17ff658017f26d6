//! A range that one thread has in hand, until it is registered or gone; whatever happens, it is let go and others are told.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use transload_cuda_sys::DriverError;

use super::{
    RegistrationCache,
    anchor::Registration,
    table::{Asked, Evicted},
};
use crate::{resource::pins::Owner, storage::Running};

/// A range in this thread's hand: when dropped it is what `registration` says, or nothing.
pub(super) struct Hand<'a> {
    cache: &'a RegistrationCache,
    pub(super) range: Range<usize>,
    pub(super) writable: bool,
    pub(super) registration: Option<Arc<Registration>>,
}

impl<'a> Hand<'a> {
    /// Of ranges to be ended; all at once, so that none stays in hand whatever happens to another.
    pub(super) fn all(cache: &'a RegistrationCache, evicted: Vec<Evicted<Registration>>) -> Vec<Self> {
        let hand = |Evicted { range, writable, payload }| Self {
            cache,
            range,
            writable,
            registration: Some(payload),
        };
        evicted.into_iter().map(hand).collect()
    }

    /// Of a range to be registered.
    pub(super) fn new(cache: &'a RegistrationCache, asked: &Asked) -> Self {
        Self { cache, range: asked.range.clone(), writable: asked.writable, registration: None }
    }

    /// Ends it; answers `None` where work is in flight on it or frees are put off, and leaves it as it was.
    pub(super) fn end(mut self) -> Result<Option<Ended>, DriverError> {
        let is_at_work = self.registration.as_ref().is_some_and(|registration| registration.is_at_work());
        if is_at_work && !transload_core::mutant!("memory/registration-at-work") {
            return Ok(None);
        }
        let Some(running) = Running::try_begin() else { return Ok(None) };
        // Gone from the table also where the driver refuses.
        let Some(registration) = self.registration.take() else { return Ok(None) };
        let owner = registration.end()?;
        drop(running);
        self.cache.desk.lock().evicted += 1;
        Ok(Some(Ended { _registration: registration, _owner: owner }))
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        {
            let mut desk = self.cache.desk.lock();
            match &self.registration {
                Some(registration) => desk.table.ready(self.range.start, registration),
                None => desk.table.gone(self.range.start),
            }
        }
        self.cache.settled.notify_all();
    }
}

/// What kept the memory of an ended registration. To drop it may run the user's code, which may use the cache or wait for a
/// thread that does: so it is dropped once this thread has nothing in hand.
pub(super) struct Ended {
    _registration: Arc<Registration>,
    _owner: Option<Owner>,
}

/// Ended registrations, let go together. The first destructor that panics does so once all have run.
#[derive(Default)]
pub(super) struct LetGo(Vec<Ended>);

impl LetGo {
    pub(super) fn push(&mut self, ended: Ended) {
        self.0.push(ended);
    }
}

impl Drop for LetGo {
    fn drop(&mut self) {
        let mut first = None;
        for ended in self.0.drain(..) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(ended))) {
                first.get_or_insert(payload);
            }
        }
        if let Some(payload) = first.filter(|_| !std::thread::panicking()) {
            resume_unwind(payload);
        }
    }
}
