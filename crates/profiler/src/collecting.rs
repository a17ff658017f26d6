//! The profiler's thread, which collects while there may be something to collect.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result, events::report};

/// Time between two collections while the profiler is enabled.
const INTERVAL: Duration = Duration::from_millis(5);

/// What the thread does next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Collects after an interval.
    Collect,
    /// Waits until there may be something to collect.
    Wait,
    Stop,
}

pub(crate) struct Collecting {
    signal: Arc<(Mutex<Signal>, Condvar)>,
    handle: JoinHandle<()>,
}

impl Collecting {
    /// Starts the thread. `collect` returns whether there is more to collect.
    pub(crate) fn start(mut collect: impl FnMut() -> bool + Send + 'static) -> Result<Self> {
        let signal = Arc::new((Mutex::new(Signal::Collect), Condvar::new()));
        let theirs = Arc::clone(&signal);
        let handle = thread::Builder::new().name("transload-profiler".to_owned()).spawn(move || {
            let (signal, changed) = &*theirs;
            loop {
                let mut next = signal.lock();
                if *next == Signal::Collect {
                    let _either = changed.wait_for(&mut next, INTERVAL);
                }
                while *next == Signal::Wait {
                    changed.wait(&mut next);
                }
                if *next == Signal::Stop {
                    return;
                }
                // Whatever is enabled from here on sets it again.
                *next = Signal::Wait;
                drop(next);
                if collect() {
                    let mut next = signal.lock();
                    if *next == Signal::Wait {
                        *next = Signal::Collect;
                    }
                }
            }
        });
        match handle {
            Ok(handle) => Ok(Self { signal, handle }),
            Err(error) => {
                report::thread_refused("the profiler", &error);
                Err(Error::caused_by(ErrorKind::Interrupted, "no thread for the profiler", error))
            }
        }
    }

    pub(crate) fn signal(&self, next: Signal) {
        *self.signal.0.lock() = next;
        self.signal.1.notify_all();
    }

    /// Waits for the thread, which was told to stop; not if it is the calling one: a gauge may have the last handle.
    pub(crate) fn join(self) {
        if self.handle.thread().id() != thread::current().id() {
            let _panicked = self.handle.join();
        }
    }
}
