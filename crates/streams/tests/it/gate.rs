//! Streams that are busy until they are told: a function of ours holds them up; and a limit for what could hang.

use std::{
    os::raw::c_void,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use transload_cuda_sys::{AsStream, check, ffi};
use transload_streams::{CudaEvent, CudaStream};

use crate::setup::Setup;

/// Holds streams up until it is opened or dropped. A test has one at a time: a driver may call one function after the other.
pub(crate) struct Gate {
    open: Sender<()>,
    waiting: Option<JoinHandle<()>>,
}

struct Hold {
    begun: Sender<()>,
    opened: Receiver<()>,
}

unsafe extern "C" fn hold(data: *mut c_void) {
    // SAFETY: `Gate::close` leaked this box for the one call of this function.
    let hold = unsafe { Box::from_raw(data.cast::<Hold>()) };
    let _gone = hold.begun.send(());
    // A gate that was dropped is open.
    let _opened = hold.opened.recv();
}

impl Gate {
    /// What comes on the streams from now on waits for the gate.
    pub(crate) fn close(setup: &Setup, streams: &[&CudaStream]) -> Self {
        let (open, opened) = channel();
        let (begun, has_begun) = channel();
        let data = Box::into_raw(Box::new(Hold { begun, opened }));
        let holder = CudaStream::new(&setup.device).unwrap();
        {
            let _bound = holder.context().enter().unwrap();
            // SAFETY: the function takes the box, once, and calls no driver function.
            let code = unsafe { ffi::cuLaunchHostFunc(holder.as_raw(), Some(hold), data.cast()) };
            check("cuLaunchHostFunc", code).unwrap();
        }
        let held = CudaEvent::new(&setup.device).unwrap();
        held.record(&holder).unwrap();
        for stream in streams {
            stream.wait_event(&held).unwrap();
        }
        // The software driver runs the function on a thread that waits: not on one that only asks.
        let waiting = thread::spawn(move || holder.driver().synchronize().unwrap());
        has_begun.recv_timeout(LIMIT).unwrap();
        Self { open, waiting: Some(waiting) }
    }

    pub(crate) fn open(mut self) {
        self.open.send(()).unwrap();
        self.waiting.take().unwrap().join().unwrap();
    }
}

const LIMIT: Duration = Duration::from_secs(30);

/// Runs a test that could hang; one that does fails.
pub(crate) fn limited(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let running = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = is_done.recv_timeout(LIMIT) {
        panic!("no end after {LIMIT:?}");
    }
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}

/// As [`Setup::finish`], once the thread that asks for awaited work has let go of the streams.
pub(crate) fn finish(setup: Setup) {
    let Setup { test, device, memory } = setup;
    memory.drain().unwrap();
    assert!(memory.ledger().is_empty(), "{}", memory.ledger());
    drop((memory, device));
    while test.sim().is_some_and(|sim| !sim.ledger().is_empty()) {
        thread::yield_now();
    }
    test.assert_no_races();
}
