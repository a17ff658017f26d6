//! Work that completes when the test says so, on any driver, so that later work is certainly unfinished; and a time limit
//! for tests that could hang.

use std::{
    ffi::c_void,
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, check, ffi};
use transload_memory::{CudaDevice, FreeDeferral};
use transload_streams::{CudaEvent, CudaStream};

/// Time after which a gate opens by itself: a test that waits wrongly fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_reached: bool,
    is_open: bool,
    was_forced: bool,
}

/// A host function on a stream of its own that returns once the gate is open, and an event after it.
pub(crate) struct Gate {
    shared: Arc<Shared>,
    event: CudaEvent,
    /// Synchronises the gate's stream: on the software driver the waiting thread runs the function.
    runner: Option<JoinHandle<()>>,
    /// Defers frees that would wait for the gate.
    frees: Option<FreeDeferral>,
}

unsafe extern "C" fn wait_until_open(data: *mut c_void) {
    // SAFETY: the data is a gate's shared state, which it keeps until its stream is synchronised.
    let shared = unsafe { &*data.cast::<Shared>() };
    let mut state = shared.state.lock().unwrap();
    state.is_reached = true;
    shared.changed.notify_all();
    let (mut state, waited) =
        shared.changed.wait_timeout_while(state, PATIENCE, |state| !state.is_open).unwrap();
    state.was_forced = waited.timed_out();
}

impl Gate {
    pub(crate) fn closed(device: &CudaDevice) -> Self {
        Self::on(&CudaStream::new(device).unwrap(), device)
    }

    /// A gate on a stream that has no other use meanwhile.
    pub(crate) fn on(stream: &CudaStream, device: &CudaDevice) -> Self {
        let (stream, frees) = (stream.clone(), Some(FreeDeferral::begin()));
        let (shared, event) = (Arc::new(Shared::default()), CudaEvent::new(device).unwrap());
        let data = Arc::as_ptr(&shared).cast_mut().cast();
        {
            let _bound = stream.context().enter().unwrap();
            // SAFETY: the shared state lives until the runner has synchronised the stream, which closing the gate waits for.
            let launched = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(wait_until_open), data) };
            check("cuLaunchHostFunc", launched).unwrap();
        }
        event.record(&stream).unwrap();
        let runner = thread::spawn(move || stream.synchronize().unwrap());
        let reached = shared.state.lock().unwrap();
        drop(shared.changed.wait_while(reached, |state| !state.is_reached).unwrap());
        Self { shared, event, runner: Some(runner), frees }
    }

    /// A closed gate that blocks these streams.
    pub(crate) fn before(device: &CudaDevice, streams: &[&CudaStream]) -> Self {
        let gate = Self::closed(device);
        gate.hold(streams.iter().copied());
        gate
    }

    /// Blocks work enqueued on the streams from now on until the gate opens.
    pub(crate) fn hold<'a>(&self, streams: impl IntoIterator<Item = &'a CudaStream>) {
        for stream in streams {
            stream.wait_event(&self.event).unwrap();
        }
    }

    pub(crate) fn open(mut self) {
        self.release();
        assert!(!self.shared.state.lock().unwrap().was_forced, "something waited for the gate that must not");
    }

    fn release(&mut self) {
        self.shared.state.lock().unwrap().is_open = true;
        self.shared.changed.notify_all();
        if let Some(runner) = self.runner.take() {
            runner.join().unwrap();
        }
        self.frees = None;
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.runner.is_some() {
            self.release();
        }
    }
}

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a test that could hang; it fails at the time limit.
pub(crate) fn limited(test: impl FnOnce() + Send + 'static) {
    within(LIMIT, test);
}

/// Like [`limited`], but with the given limit.
pub(crate) fn within(limit: Duration, test: impl FnOnce() + Send + 'static) {
    let limit = limit * harness::rounds();
    let (done, is_done) = channel();
    let running = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(limit) {
        panic!("no end after {limit:?}");
    }
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}
