//! Closures to be run once work is over, on a thread of the user's choice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Fence, Result, panic_text};

use super::{MultiStreamCoordinator, unknown};
use crate::CudaStream;

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

struct Entry {
    number: u64,
    fence: Fence,
    callback: Callback,
}

/// Callbacks in the order in which they were added.
#[derive(Default)]
pub(super) struct Callbacks(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    next: u64,
    entries: Vec<Entry>,
}

/// What [`execute_callbacks`](MultiStreamCoordinator::execute_callbacks) did.
#[derive(Clone, Debug, Default)]
pub struct ExecutedCallbacks {
    /// How many callbacks were called.
    pub ran: usize,
    /// One error for each of them that panicked, with the panic's text.
    pub panics: Vec<Error>,
}

impl MultiStreamCoordinator {
    /// Keeps `callback` until what is enqueued on the stream so far is over and someone calls
    /// [`execute_callbacks`](Self::execute_callbacks). It is told that work's outcome. Dropped with the coordinator it never
    /// runs. For one that runs by itself, see the stream's own callbacks.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream that is not registered; the driver's. The callback is dropped then.
    pub fn add_completion_callback(
        &self,
        stream: &CudaStream,
        callback: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        if !self.is_registered(stream.id()) {
            return Err(unknown(stream.id(), stream.device()));
        }
        let (fence, callback) = (stream.fence()?, Box::new(callback));
        let mut pending = self.callbacks.0.lock();
        let number = pending.next;
        pending.next += 1;
        pending.entries.push(Entry { number, fence, callback });
        Ok(())
    }

    /// Runs the callbacks whose work is over, on this thread, in the order in which they were added; the others stay. Never
    /// waits for work. A panic in one is contained, and the rest run. A callback may use the coordinator. Where several
    /// threads call this at once each callback runs once, and the order holds per thread.
    pub fn execute_callbacks(&self) -> ExecutedCallbacks {
        let asked: Vec<(u64, Fence)> =
            self.callbacks.0.lock().entries.iter().map(|entry| (entry.number, entry.fence.clone())).collect();
        let mut executed = ExecutedCallbacks::default();
        for (number, fence) in asked {
            let outcome = match fence.timeline().poll(fence.point()) {
                Ok(false) => continue,
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            let Some(callback) = self.callbacks.take(number) else { continue };
            executed.ran += 1;
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback(outcome))) {
                let text = format!("a completion callback panicked: {}", panic_text(payload));
                executed.panics.push(Error::new(ErrorKind::Interrupted, text));
            }
        }
        executed
    }
}

impl Callbacks {
    /// Takes a callback out, unless another thread did.
    fn take(&self, number: u64) -> Option<Callback> {
        // Its fence may be the last of a stream: it goes outside the lock.
        let entry = {
            let mut pending = self.0.lock();
            let index = pending.entries.binary_search_by_key(&number, |entry| entry.number).ok()?;
            pending.entries.remove(index)
        };
        Some(entry.callback)
    }
}
