//! A time limit for tests that could hang.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Longer than any scenario takes, also where ten programs share each processor.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Returns what `scenario` returns. Fails the test, with `stage`, where it is not over within [`LIMIT`].
pub(crate) fn within<T: Send + 'static>(stage: &str, scenario: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = mpsc::channel();
    let thread = thread::Builder::new().name(format!("test: {stage}")).spawn(move || done.send(scenario()));
    match answer.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("not over after {LIMIT:?}: {stage}"),
        Err(RecvTimeoutError::Disconnected) => match thread.unwrap().join() {
            Err(panicked) => std::panic::resume_unwind(panicked),
            Ok(_) => unreachable!("the scenario sends before it ends"),
        },
    }
}
