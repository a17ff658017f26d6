//! Starts threads, and reports that the system refuses them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use parking_lot::Mutex;
use transload_core::events::report;

use crate::guarded::discard;

/// Starts threads for one purpose. Of refusals in a row, the first is reported: under a limit each push might cause one.
pub(crate) struct ThreadStarter {
    purpose: &'static str,
    is_refused: AtomicBool,
}

impl ThreadStarter {
    pub(crate) const fn new(purpose: &'static str) -> Self {
        Self { purpose, is_refused: AtomicBool::new(false) }
    }

    /// Starts a thread, which nothing joins.
    pub(crate) fn start(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let held = Arc::new(Mutex::new(Some(body)));
        let theirs = Arc::clone(&held);
        let started = thread::Builder::new().name(name).spawn(move || {
            let body = theirs.lock().take();
            body.into_iter().for_each(|body| body());
        });
        if started.is_err() {
            // What it holds is the caller's.
            discard(held.lock().take());
        }
        let was_refused = self.is_refused.swap(started.is_err(), Ordering::Relaxed);
        started.map(|_detached| ()).inspect_err(|error| {
            if !was_refused {
                report::thread_refused(self.purpose, error);
            }
        })
    }
}
