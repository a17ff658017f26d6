//! Guards of busy table entries: on every path the entry is registered or removed, and waiters are notified.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use transload_core::{Claims, RawBuffer, events::report, panic_text};
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
        let registrations: Vec<_> = guards.iter().map(|guard| guard.registration.clone()).collect();
        // Their end wakes tasks, which may use the cache: when this thread has no busy entry any more.
        let mut claims = HeldClaims(Vec::new());
        let ended = guards.into_iter().zip(&registrations).map(|(guard, registration)| {
            let Some(registration) = registration else { return Ok(End::InUse) };
            let ended = guard.end(registration, &mut claims.0);
            if transload_core::mutant!("memory/claims-outlive-busy-entries") {
                claims.0.clear();
            }
            ended
        });
        ended.collect()
    }

    fn end<'r>(
        mut self,
        registration: &'r Arc<Registration>,
        claims: &mut Vec<Claims<'r>>,
    ) -> Result<End, DriverError> {
        match registration.claim_unused() {
            Ok(all) => claims.push(all),
            Err(in_use) => {
                claims.extend(in_use.claims.map(|claims| *claims));
                if !transload_core::mutant!("memory/registration-at-work") {
                    return Ok(End::InUse);
                }
            }
        }
        let Some(running) = Running::begin_within(Duration::ZERO) else { return Ok(End::Deferred) };
        // Removed from the table even if the driver refuses.
        self.registration = None;
        let ended = registration.end();
        drop(running);
        self.cache.state.lock().evicted += u64::from(ended.is_ok());
        let owner = ended?;
        Ok(End::Ended(Ended { _registration: Arc::clone(registration), _owner: owner }))
    }
}

/// Claims that end together.
struct HeldClaims<'a>(Vec<Claims<'a>>);

impl Drop for HeldClaims<'_> {
    fn drop(&mut self) {
        Claims::end_all(self.0.drain(..));
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
