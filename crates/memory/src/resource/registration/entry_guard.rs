//! Guards of busy table entries: on every path the entry is registered or removed, and waiters are notified.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use transload_core::{DelayedWakes, RawBuffer, events::report, panic_text};
use transload_cuda_sys::DriverError;

use super::{
    RegistrationCache,
    range::Registration,
    table::{Evicted, Request},
};
use crate::{resource::host_registration::Owner, storage::Running};

/// A busy entry of this thread. On drop it becomes `registration`, or is removed if that is `None`.
pub(super) struct EntryGuard<'a> {
    cache: &'a RegistrationCache,
    pub(super) range: Range<usize>,
    pub(super) writable: bool,
    pub(super) registration: Option<Arc<Registration>>,
}

impl<'a> EntryGuard<'a> {
    /// Creates guards of ranges to be ended; all at once, so that no entry stays busy if ending another one panics.
    pub(super) fn all(cache: &'a RegistrationCache, evicted: Vec<Evicted<Registration>>) -> Vec<Self> {
        let guard = |Evicted { range, writable, payload }| Self {
            cache,
            range,
            writable,
            registration: Some(payload),
        };
        evicted.into_iter().map(guard).collect()
    }

    /// Creates a guard of a range to be registered.
    pub(super) fn new(cache: &'a RegistrationCache, request: &Request) -> Self {
        Self { cache, range: request.range.clone(), writable: request.writable, registration: None }
    }

    /// Returns the range, whether it is writable, and the buffers that keep it mapped.
    pub(super) fn describe(&self) -> (Range<usize>, bool, Vec<RawBuffer>) {
        let owners = self.registration.iter().flat_map(|registration| registration.owners().to_vec());
        (self.range.clone(), self.writable, owners.collect())
    }

    /// Ends registrations, each unless something uses it or frees are deferred. Returns what became of them, in order.
    pub(super) fn end_all(guards: Vec<Self>) -> Vec<Result<End, DriverError>> {
        // The end of a claim wakes tasks, which may use the cache: when this thread has no busy entry any more.
        let mut wakes = DelayedWakes::default();
        guards.into_iter().map(|guard| guard.end(&mut wakes)).collect()
    }

    fn end(mut self, wakes: &mut DelayedWakes) -> Result<End, DriverError> {
        let mut now = DelayedWakes::default();
        let wakes =
            if transload_core::mutant!("memory/claims-outlive-busy-entries") { &mut now } else { wakes };
        let Some(registration) = self.registration.clone() else { return Ok(End::InUse) };
        let claims = match registration.claim_unused() {
            Ok(claims) => Some(claims),
            Err(in_use) => {
                in_use.claims.into_iter().for_each(|claims| claims.end_quietly(wakes));
                if !transload_core::mutant!("memory/registration-at-work") {
                    return Ok(End::InUse);
                }
                None
            }
        };
        let ended = Running::begin_within(Duration::ZERO).map(|_running| {
            // Removed from the table even if the driver refuses.
            self.registration = None;
            registration.end()
        });
        claims.into_iter().for_each(|claims| claims.end_quietly(wakes));
        let Some(ended) = ended else { return Ok(End::Deferred) };
        self.cache.state.lock().evicted += u64::from(ended.is_ok());
        let owner = ended?;
        Ok(End::Ended(Ended { _registration: registration, _owner: owner }))
    }
}

/// What became of a registration that should end.
pub(super) enum End {
    Ended(Ended),
    InUse,
    /// It stays, since frees are deferred.
    Deferred,
}

impl Drop for EntryGuard<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.cache.state.lock();
            match &self.registration {
                Some(registration) => state.table.ready(self.range.start, registration),
                None => state.table.remove(self.range.start),
            }
        }
        self.cache.entry_settled.notify_all();
    }
}

/// The owner of an ended registration's memory. Its drop may run user code that uses the cache or waits for a thread
/// that does, so drop it when this thread has no busy entry.
pub(super) struct Ended {
    _registration: Arc<Registration>,
    _owner: Option<Owner>,
}

/// Ended registrations, dropped together. All destructors run; then the first panic is resumed.
#[derive(Default)]
pub(super) struct DropLater(Vec<Ended>);

impl DropLater {
    pub(super) fn push(&mut self, ended: Ended) {
        self.0.push(ended);
    }
}

impl Drop for DropLater {
    fn drop(&mut self) {
        let mut first = None;
        for ended in self.0.drain(..) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(ended))) {
                match first {
                    None if !std::thread::panicking() => first = Some(payload),
                    _ => report::panic_caught(&panic_text(payload)),
                }
            }
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }
}
