//! A range that one thread has in hand, until it is registered or gone; whatever happens, it is let go and others are told.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use transload_core::RawBuffer;
use transload_cuda_sys::DriverError;

use super::{RegistrationCache, anchor::Registration, table::Evicted};
use crate::{free_deferral::Running, resource::pins::Owner};

/// A registration that this thread has in hand to end it. Dropped otherwise, it is ready as before.
pub(super) struct Hand<'a> {
    cache: &'a RegistrationCache,
    evicted: Option<Evicted<Registration>>,
    range: Range<usize>,
}

impl<'a> Hand<'a> {
    /// All at once, so that none stays in hand whatever happens to another.
    pub(super) fn all(cache: &'a RegistrationCache, evicted: Vec<Evicted<Registration>>) -> Vec<Self> {
        let hand = |evicted: Evicted<Registration>| {
            let range = evicted.range.clone();
            Self { cache, evicted: Some(evicted), range }
        };
        evicted.into_iter().map(hand).collect()
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub(super) fn writable(&self) -> bool {
        self.evicted.as_ref().is_some_and(|evicted| evicted.writable)
    }

    pub(super) fn owners(&self) -> &[RawBuffer] {
        self.evicted.as_ref().map_or(&[], |evicted| evicted.payload.owners())
    }

    /// Ends it; answers `None` where work is in flight on it or frees are put off, and leaves it as it was.
    pub(super) fn end(mut self) -> Result<Option<Ended>, DriverError> {
        let is_at_work = self.evicted.as_ref().is_some_and(|evicted| evicted.payload.is_at_work());
        if is_at_work && !transload_core::mutant!("memory/registration-at-work") {
            return Ok(None);
        }
        let Some(running) = Running::try_begin() else { return Ok(None) };
        let Some(evicted) = self.evicted.take() else { return Ok(None) };
        // Gone from the table also where the driver refuses.
        let _gone = Joining::new(self.cache, self.range.start);
        let owner = evicted.payload.end()?;
        drop(running);
        self.cache.desk.lock().evicted += 1;
        Ok(Some(Ended { _registration: evicted.payload, _owner: owner }))
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        if let Some(evicted) = self.evicted.take() {
            self.cache.desk.lock().table.ready(self.range.start, &evicted.payload);
            self.cache.settled.notify_all();
        }
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

/// A range in this thread's hand: when dropped it is what was made, or nothing.
pub(super) struct Joining<'a> {
    cache: &'a RegistrationCache,
    start: usize,
    made: Option<Arc<Registration>>,
}

impl<'a> Joining<'a> {
    pub(super) fn new(cache: &'a RegistrationCache, start: usize) -> Self {
        Self { cache, start, made: None }
    }

    pub(super) fn done(mut self, made: Arc<Registration>) -> Arc<Registration> {
        self.made = Some(Arc::clone(&made));
        made
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        {
            let mut desk = self.cache.desk.lock();
            match &self.made {
                Some(made) => {
                    desk.table.ready(self.start, made);
                    desk.registered += 1;
                }
                None => desk.table.gone(self.start),
            }
        }
        self.cache.settled.notify_all();
    }
}
