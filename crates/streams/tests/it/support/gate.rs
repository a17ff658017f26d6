//! Work that ends when the test says so, on any driver: what comes behind it is certainly unfinished. And a limit for what
//! could hang.

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

/// After this long it opens by itself, so that a test whose host waits where it must not fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Door {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_reached: bool,
    is_open: bool,
    was_forced: bool,
}

/// A host function on a stream of its own that returns once the gate is open; an event behind it.
pub(crate) struct Gate {
    door: Arc<Door>,
    event: CudaEvent,
    /// Waits for the gate's stream: on the software driver it is who waits that runs the function.
    runner: Option<JoinHandle<()>>,
    /// What is dropped meanwhile must not be freed by a call that waits for the gate.
    frees: Option<FreeDeferral>,
}

unsafe extern "C" fn stand(data: *mut c_void) {
    // SAFETY: the data is the door of a gate, which keeps it until its stream is synchronised.
    let door = unsafe { &*data.cast::<Door>() };
    let mut state = door.state.lock().unwrap();
    state.is_reached = true;
    door.changed.notify_all();
    let (mut state, waited) =
        door.changed.wait_timeout_while(state, PATIENCE, |state| !state.is_open).unwrap();
    state.was_forced = waited.timed_out();
}

impl Gate {
    pub(crate) fn closed(device: &CudaDevice) -> Self {
        Self::on(&CudaStream::new(device).unwrap(), device)
    }

    /// A gate on a stream that is used for nothing else meanwhile.
    pub(crate) fn on(stream: &CudaStream, device: &CudaDevice) -> Self {
        let (stream, frees) = (stream.clone(), Some(FreeDeferral::begin()));
        let (door, event) = (Arc::new(Door::default()), CudaEvent::new(device).unwrap());
        let data = Arc::as_ptr(&door).cast_mut().cast();
        {
            let _bound = stream.context().enter().unwrap();
            // SAFETY: the door lives until the runner has synchronised the stream, which the gate's end waits for.
            let launched = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(stand), data) };
            check("cuLaunchHostFunc", launched).unwrap();
        }
        event.record(&stream).unwrap();
        let runner = thread::spawn(move || stream.synchronize().unwrap());
        let reached = door.state.lock().unwrap();
        drop(door.changed.wait_while(reached, |state| !state.is_reached).unwrap());
        Self { door, event, runner: Some(runner), frees }
    }

    /// A gate that holds these streams from here on.
    pub(crate) fn before(device: &CudaDevice, streams: &[&CudaStream]) -> Self {
        let gate = Self::closed(device);
        gate.hold(streams.iter().copied());
        gate
    }

    /// Nothing enqueued on the streams from here on runs before the gate opens.
    pub(crate) fn hold<'a>(&self, streams: impl IntoIterator<Item = &'a CudaStream>) {
        for stream in streams {
            stream.wait_event(&self.event).unwrap();
        }
    }

    pub(crate) fn open(mut self) {
        self.let_through();
        assert!(!self.door.state.lock().unwrap().was_forced, "something waited for the gate that must not");
    }

    fn let_through(&mut self) {
        self.door.state.lock().unwrap().is_open = true;
        self.door.changed.notify_all();
        if let Some(runner) = self.runner.take() {
            runner.join().unwrap();
        }
        self.frees = None;
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.runner.is_some() {
            self.let_through();
        }
    }
}

const LIMIT: Duration = Duration::from_secs(30);

/// Runs a test that could hang; one that does fails.
pub(crate) fn limited(test: impl FnOnce() + Send + 'static) {
    within(LIMIT, test);
}

/// As [`limited`], for a test that takes longer.
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
