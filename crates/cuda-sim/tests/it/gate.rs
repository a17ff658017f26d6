//! A gate: a host function that holds streams until the test opens it; and calls on another thread that may block on
//! it.

use std::{
    ffi::c_void,
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, channel},
    },
    thread::{self, JoinHandle, Scope},
    time::Duration,
};

use transload_cuda_sys::{AsStream, Event, EventTiming, Stream, check, ffi};

use crate::raw::Bench;

/// A closed gate opens by itself after this time, so that a test that blocks on it fails instead of hanging.
const LIMIT: Duration = Duration::from_secs(30);
/// A call that has not returned after this time counts as blocked.
const AWHILE: Duration = Duration::from_millis(200);

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

pub(crate) struct Gate {
    door: Arc<Door>,
    event: Event,
    /// Waits for the gate's stream: on the software driver the waiting thread runs the function.
    runner: Option<JoinHandle<()>>,
}

unsafe extern "C" fn stand(data: *mut c_void) {
    // SAFETY: the data is the door of a gate, which keeps it until its stream is synchronised.
    let door = unsafe { &*data.cast::<Door>() };
    let mut state = door.state.lock().expect("no panic");
    state.is_reached = true;
    door.changed.notify_all();
    let waited = door.changed.wait_timeout_while(state, LIMIT, |state| !state.is_open);
    let (mut state, waited) = waited.expect("no panic");
    state.was_forced = waited.timed_out();
}

impl Gate {
    /// Closes a gate for the streams.
    pub(crate) fn before(bench: &Bench, streams: &[&Stream]) -> Self {
        let (own, door) = (bench.stream(), Arc::new(Door::default()));
        let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
        {
            let _bound = bench.context.enter().expect("enter");
            let data = Arc::as_ptr(&door).cast_mut().cast();
            // SAFETY: the door lives until the runner has synchronised the stream, which `open` and drop wait for.
            let launched = unsafe { ffi::cuLaunchHostFunc(own.as_raw(), Some(stand), data) };
            check("cuLaunchHostFunc", launched).expect("launch");
        }
        event.record(&own).expect("record");
        let runner = thread::spawn(move || {
            let _lost_where_a_test_wants_it = own.synchronize();
        });
        let state = door.state.lock().expect("no panic");
        drop(door.changed.wait_while(state, |state| !state.is_reached).expect("no panic"));
        for stream in streams {
            stream.wait_event(&event).expect("wait");
        }
        Self { door, event, runner: Some(runner) }
    }

    pub(crate) fn open(mut self) {
        self.let_through();
        assert!(
            !self.door.state.lock().expect("no panic").was_forced,
            "a call waited for the gate for {LIMIT:?}"
        );
        assert!(self.event.is_done().is_ok());
    }

    fn let_through(&mut self) {
        self.door.state.lock().expect("no panic").is_open = true;
        self.door.changed.notify_all();
        if let Some(runner) = self.runner.take() {
            assert!(runner.join().is_ok(), "the runner panicked");
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.runner.is_some() {
            self.let_through();
        }
    }
}

/// A call on a thread of its own.
pub(crate) struct Aside<T>(Receiver<T>);

impl<T: Send> Aside<T> {
    pub(crate) fn new<'scope>(
        scope: &'scope Scope<'scope, '_>,
        call: impl FnOnce() -> T + Send + 'scope,
    ) -> Self
    where
        T: 'scope,
    {
        let (done, is_done) = channel();
        scope.spawn(move || {
            let _test_is_over = done.send(call());
        });
        Self(is_done)
    }

    /// Returns the call's result, or `None` if it has not returned in time.
    pub(crate) fn early(&self) -> Option<T> {
        self.0.recv_timeout(AWHILE).ok()
    }

    /// Returns the result of a call that does not wait for the gate, or `None` if it has not returned long before the gate opens by itself.
    pub(crate) fn soon(&self) -> Option<T> {
        self.0.recv_timeout(LIMIT / 2).ok()
    }

    pub(crate) fn late(&self) -> T {
        self.0.recv_timeout(LIMIT).expect("the call returns once the gate is open")
    }
}
