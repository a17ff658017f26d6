//! Closures that run once work is complete, on a thread of the user's choice.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Fence, Result, events::report, mutant, panic_text};

use super::{MultiStreamCoordinator, unknown};
use crate::CudaStream;

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

struct Entry {
    fence: Fence,
    callback: Callback,
}

/// Callbacks in the order in which they were added.
#[derive(Default)]
pub(super) struct Callbacks(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    next: u64,
    /// By their numbers.
    entries: BTreeMap<u64, Entry>,
}

/// Result of [`execute_callbacks`](MultiStreamCoordinator::execute_callbacks).
#[derive(Clone, Debug, Default)]
pub struct ExecutedCallbacks {
    /// Number of callbacks called.
    pub ran: usize,
    /// One error for each that panicked, with the panic's text.
    pub panics: Vec<Error>,
}

impl MultiStreamCoordinator {
    /// Keeps `callback` for [`execute_callbacks`](Self::execute_callbacks), which calls it with the outcome of the work
    /// enqueued on the stream so far, once that is complete. It never runs if the coordinator is dropped before. For
    /// callbacks that run by themselves, see [`CudaStream::add_callback`].
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
        pending.entries.insert(number, Entry { fence, callback });
        Ok(())
    }

    /// Runs the stream's callbacks whose work is complete, on this thread, in the order in which they were added; the
    /// others stay. Never waits for work. A panic in a callback is caught, and the others run. A callback may use the
    /// coordinator. If several threads call this concurrently, each callback runs once, in order per thread.
    pub fn execute_callbacks(&self, stream: &CudaStream) -> ExecutedCallbacks {
        self.execute(|fence| fence.timeline().id() == stream.id())
    }

    /// Like [`execute_callbacks`](Self::execute_callbacks), but for the callbacks of all streams.
    pub fn execute_all_callbacks(&self) -> ExecutedCallbacks {
        self.execute(|_| true)
    }

    fn execute(&self, is_included: impl Fn(&Fence) -> bool) -> ExecutedCallbacks {
        let candidates: Vec<(u64, Fence)> = {
            let pending = self.callbacks.0.lock();
            let included = pending.entries.iter().filter(|(_, entry)| is_included(&entry.fence));
            included.map(|(number, entry)| (*number, entry.fence.clone())).collect()
        };
        let mut executed = ExecutedCallbacks::default();
        // Streams whose later callbacks wait for one whose work was not complete, though it may be by now.
        let mut held = Vec::new();
        for (number, fence) in candidates {
            let stream = fence.timeline().id();
            if held.contains(&stream) {
                continue;
            }
            let outcome = match fence.poll() {
                Ok(false) => {
                    if !mutant!("streams/callbacks-in-order") {
                        held.push(stream);
                    }
                    continue;
                }
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            let Some(callback) = self.callbacks.take(number) else { continue };
            executed.ran += 1;
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback(outcome))) {
                let text = panic_text(payload);
                report::panic_caught(&text);
                let text = format!("a completion callback panicked: {text}");
                executed.panics.push(Error::new(ErrorKind::Interrupted, text));
            }
        }
        executed
    }
}

impl Callbacks {
    /// Takes a callback out, unless another thread did.
    fn take(&self, number: u64) -> Option<Callback> {
        // Dropped without the lock: the fence may be the last handle of a stream.
        let entry = self.0.lock().entries.remove(&number)?;
        Some(entry.callback)
    }
}
