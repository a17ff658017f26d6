//! The thread that wakes tasks survives what tasks do on it.

use std::{
    panic::panic_any,
    sync::{Arc, Mutex, mpsc},
    task::{Wake, Waker},
    time::Duration,
};

use transload_core::Pattern;
use transload_streams::CudaStream;

use crate::{gate::Gate, setup::Setup};

const PATIENCE: Duration = Duration::from_secs(20);

type Task = Box<dyn FnOnce() + Send>;

/// An executor that runs its task where it is woken.
struct Inline(Mutex<Option<Task>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let task = self.0.lock().unwrap().take();
        if let Some(task) = task {
            task();
        }
    }
}

/// Has `task` run by the reactor, when the fill that is held back by the gate is over.
fn run_on_the_reactor(setup: &Setup, stream: &CudaStream, task: Task) -> Gate {
    let there = setup.device(1 << 20);
    let gate = Gate::before(&setup.device, &[stream]);
    let fill = stream.memset_async(&there, Pattern::U8(2));
    let fence = fill.fence().unwrap().clone();
    let waker = Waker::from(Arc::new(Inline(Mutex::new(Some(task)))));
    assert!(!fence.timeline().wake_at(fence.point(), &waker), "it is held back");
    gate
}

#[test]
fn a_task_that_runs_where_it_is_woken_may_synchronise_a_stream_that_has_a_callback() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (synchronised, seen) = mpsc::channel();
    let (called, calls) = mpsc::channel();
    let same = stream.clone();
    let gate = run_on_the_reactor(
        &setup,
        &stream,
        Box::new(move || {
            same.synchronize().unwrap();
            drop(same);
            synchronised.send(()).unwrap();
        }),
    );
    stream.add_callback(move |outcome| called.send(outcome).unwrap()).unwrap();
    gate.open();
    seen.recv_timeout(PATIENCE).expect("the reactor waits for a callback that only it can bring about");
    calls.recv_timeout(PATIENCE).expect("and the callback runs").unwrap();
    drop(stream);
    setup.finish();
}

/// A panic's payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "by the test");
    }
}

#[test]
fn a_waker_whose_panic_panics_again_leaves_the_reactor_alive() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let gate = run_on_the_reactor(&setup, &stream, Box::new(|| panic_any(Bomb)));
    gate.open();
    stream.synchronize().unwrap();
    let (called, calls) = mpsc::channel();
    stream.add_callback(move |outcome| called.send(outcome).unwrap()).unwrap();
    calls.recv_timeout(PATIENCE).expect("nothing wakes anyone any more").unwrap();
    drop(stream);
    setup.finish();
}
