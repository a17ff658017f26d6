//! Drains that are awaited: one after another, on a thread that ends with the last.

use std::{
    mem,
    sync::{Arc, Weak},
    thread,
};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result, catch_panic};
use transload_executor::{Completer, Task};
use transload_transfer::CrossBackendTransferManager;

use crate::Runtime;

/// The awaited drains of a runtime that have not begun.
#[derive(Default)]
pub(crate) struct Drains(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    waiting: Vec<Drain>,
    /// Whether a thread takes from the queue.
    is_served: bool,
}

struct Drain {
    /// Of the future.
    failure: Weak<Failure>,
    ended: Completer<()>,
}

/// The error of a drain. The manager keeps it for its next drain if the future is dropped before it takes it.
struct Failure {
    error: Mutex<Option<Error>>,
    manager: CrossBackendTransferManager,
}

impl Drop for Failure {
    fn drop(&mut self) {
        if let Some(error) = self.error.get_mut().take() {
            self.manager.keep_failure(error);
        }
    }
}

/// Drains on another thread, from the first poll on: one of the executor would wait for itself.
pub(crate) async fn drain(runtime: Runtime) -> Result<()> {
    // Declared first, so that a drain without it has nothing that waits for it.
    let failure = Arc::new(Failure { error: Mutex::default(), manager: runtime.manager().clone() });
    let (drained, ended) = Task::pending();
    start(&runtime, Drain { failure: Arc::downgrade(&failure), ended })?;
    drained.await?;
    let error = failure.error.lock().take();
    error.map_or(Ok(()), Err)
}

fn start(runtime: &Runtime, drain: Drain) -> Result<()> {
    let mut queue = runtime.drains().0.lock();
    // A dropped drain is part of this one. Its waker is other code, which needs the lock dropped.
    let all = mem::take(&mut queue.waiting).into_iter();
    let (waiting, dropped): (Vec<_>, Vec<_>) = all.partition(|one| one.failure.strong_count() > 0);
    queue.waiting = waiting;
    if !queue.is_served {
        // Under the lock, so that no other drain waits for a thread that is refused.
        let theirs = runtime.clone();
        let thread = thread::Builder::new().name("transload-drain".to_owned());
        thread
            .spawn(move || serve(theirs))
            .map_err(|error| Error::caused_by(ErrorKind::Io, "cannot start a thread that drains", error))?;
        queue.is_served = true;
    }
    queue.waiting.push(drain);
    drop(queue);
    drop(dropped);
    Ok(())
}

fn serve(runtime: Runtime) {
    let mut next = runtime.drains().next();
    while let Some(drain) = next {
        if let Err(error) = catch_panic(|| runtime.drain()).flatten() {
            match drain.failure.upgrade() {
                Some(failure) => *failure.error.lock() = Some(error),
                None => runtime.manager().keep_failure(error),
            }
        }
        next = runtime.drains().next();
        if next.is_none() {
            // First, since the caller may drop the last other handle then, and expect that nothing is left.
            drop(runtime);
            return drain.ended.complete(Ok(()));
        }
        drain.ended.complete(Ok(()));
    }
}

impl Drains {
    fn next(&self) -> Option<Drain> {
        let mut queue = self.0.lock();
        queue.is_served = !queue.waiting.is_empty();
        queue.is_served.then(|| queue.waiting.remove(0))
    }
}
