//! The end of a registration: only while nothing uses its buffers, and no work on them can be submitted.

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use transload_core::{Access, Claims, Fence, RawBuffer, Reclaimer, Turns};
use transload_cuda_sys::{Context, DriverError};

use super::{pending_uses::end_of_uses, range::RegisteredRange};
use crate::{
    allocation_counts::CountGuard,
    manager::AllocContext,
    resource::host_registration::{HostRegistration, Owner},
    storage::{FreeThread, Running, finish_free},
};

/// The buffers that keep a registered range mapped.
pub(super) type Owners = Arc<[RawBuffer]>;

/// Claims buffers for writing, so that no work on them can be submitted. Queries the driver, but does not wait.
///
/// # Errors
/// What uses them, if anything does: work in flight, a submission in progress, a view or a loan. Other code may copy
/// through the latter two.
pub(super) fn claim_unused(owners: &Owners) -> Result<Claims<'_>, InUse<'_>> {
    let mut uses: Vec<_> = owners.iter().map(|owner| (owner, Access::Write)).collect();
    let Ok(mut claims) = Claims::try_acquire(&mut uses, &Turns::default()) else {
        if transload_core::mutant!("memory/registration-counts-submissions")
            && let Ok(none) = Claims::acquire(&mut [])
        {
            return Ok(none);
        }
        return Err(InUse { until: vec![end_of_uses(owners)], claims: None });
    };
    let open: Vec<Fence> = claims.after().iter().filter(|fence| !fence.is_complete()).cloned().collect();
    if !open.is_empty() && !transload_core::mutant!("memory/registration-ends-after-owners-work") {
        return Err(InUse { until: open, claims: Some(Box::new(claims)) });
    }
    if transload_core::mutant!("memory/registration-end-holds-buffers") {
        claims = Claims::acquire(&mut []).unwrap_or(claims);
    }
    Ok(claims)
}

/// Why a registration cannot end now.
pub(super) struct InUse<'a> {
    /// The ends of what uses its buffers, as far as they are known.
    pub(super) until: Vec<Fence>,
    /// Claims that were made all the same. Their end wakes tasks.
    pub(super) claims: Option<Box<Claims<'a>>>,
}

/// A registration, and what its end needs.
pub(super) struct Held {
    registration: HostRegistration,
    counted: CountGuard,
    owners: Owners,
    context: Context,
    free_thread: Arc<FreeThread>,
    /// Weak, since it may keep this.
    reclaimer: Weak<Reclaimer>,
}

impl Held {
    pub(super) fn new(
        alloc: &AllocContext<'_>,
        registration: HostRegistration,
        counted: CountGuard,
        owners: Owners,
    ) -> Self {
        Self {
            registration,
            counted,
            owners,
            context: alloc.context.clone(),
            free_thread: Arc::clone(alloc.free_thread),
            reclaimer: Arc::downgrade(alloc.reclaimer),
        }
    }

    /// Ends the registration and returns the owner that kept the memory mapped. The caller has claimed the buffers.
    pub(super) fn end(mut self) -> Result<Option<Owner>, DriverError> {
        let ended = self.registration.end();
        // A registration that could not be ended still counts.
        if ended.is_ok() {
            drop(self.counted)
        } else {
            std::mem::forget(self.counted)
        }
        ended
    }

    /// Has the registration ended on another thread once nothing uses the buffers. Does not wait.
    pub(super) fn end_later(self, range: Range<usize>) {
        let unused = claim_unused(&self.owners).map(drop).map_err(|in_use| in_use.until);
        match unused {
            Ok(()) => {
                let thread = Arc::clone(&self.free_thread);
                thread.call(move || self.end_on_thread(range));
            }
            Err(until) => self.park(range, &until),
        }
    }

    /// Ends the registration, unless the buffers are used again.
    fn end_on_thread(mut self, range: Range<usize>) {
        let owners = Arc::clone(&self.owners);
        loop {
            // Without the claims, since a thread that defers frees may wait for them.
            drop(Running::begin());
            let claims = match claim_unused(&owners) {
                Ok(claims) => Some(claims),
                Err(_) if transload_core::mutant!("memory/registration-end-looks-again") => None,
                Err(InUse { until, .. }) => {
                    let thread = Arc::clone(&self.free_thread);
                    self.park(range, &until);
                    // Afterwards: a drain that sees this count finds what was parked.
                    return thread.count_postponed();
                }
            };
            let Some(running) = Running::begin_within(Duration::ZERO) else { continue };
            let ended = self.registration.end();
            // First, since the end of the claims wakes tasks.
            drop(running);
            drop(claims);
            let (freed, owner) = match ended {
                Ok(owner) => (Ok(()), owner),
                Err(error) => (Err(error), None),
            };
            finish_free(freed, &self.context, self.counted);
            return drop(owner);
        }
    }

    /// Keeps the registration pending free until the fences complete.
    fn park(self, range: Range<usize>, until: &[Fence]) {
        // Without its manager, it is left to the process's other ones.
        let reclaimer = self.reclaimer.upgrade().unwrap_or_default();
        if let Some(range) = RegisteredRange::new(range, self) {
            drop(RawBuffer::new_after(Box::new(range), &reclaimer, until));
        }
    }
}
