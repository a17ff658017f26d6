//! Reports the failure of work whose transfer was dropped before its end was observed.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use tracing::Level;

use crate::{
    Fence,
    events::{is_wanted, report},
};

/// Reports [`FAILURE_UNOBSERVED`](crate::events::FAILURE_UNOBSERVED) once the work is complete, if it failed. Does not wait, and does
/// nothing without a subscriber.
#[cold]
pub(crate) fn report_failure(fence: &Fence) {
    if is_wanted(Level::WARN) {
        Arc::new(Unobserved(fence.clone())).wake();
    }
}

struct Unobserved(Fence);

impl Wake for Unobserved {
    fn wake(self: Arc<Self>) {
        if !self.0.is_known_complete() && !self.0.wake_at(&Waker::from(Arc::clone(&self))) {
            return;
        }
        if let Some(Err(error)) = self.0.outcome() {
            report::failure_unobserved(&error);
        }
    }
}
