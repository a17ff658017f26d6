//! The thread that wakes tasks survives what tasks do on it.

use std::{
    panic::panic_any,
    sync::{Arc, Mutex, mpsc},
    task::{RawWaker, RawWakerVTable, Wake, Waker},
    time::Duration,
};

use transload_core::Pattern;
use transload_streams::CudaStream;

use crate::support::{
    gate::{Gate, limited},
    setup::Setup,
};

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

/// A waker with code of a task's in its clone and drop.
struct Hooks {
    cloned: Box<dyn Fn() + Send + Sync>,
    dropped: Box<dyn Fn() + Send + Sync>,
}

impl Hooks {
    const TABLE: RawWakerVTable = RawWakerVTable::new(Self::clone, Self::wake, |_| {}, Self::drop);

    fn waker(cloned: impl Fn() + Send + Sync + 'static, dropped: impl Fn() + Send + Sync + 'static) -> Waker {
        let hooks = Arc::new(Self { cloned: Box::new(cloned), dropped: Box::new(dropped) });
        // SAFETY: the table's functions take a pointer that counts one handle of the `Arc`.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(hooks).cast(), &Self::TABLE)) }
    }

    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: the pointer came from `Arc::into_raw`, and its handle is alive; it is not dropped here.
        let hooks = std::mem::ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<Self>()) });
        (hooks.cloned)();
        RawWaker::new(Arc::into_raw(Arc::clone(&hooks)).cast(), &Self::TABLE)
    }

    unsafe fn wake(data: *const ()) {
        // SAFETY: as above, and this handle is given up.
        drop(unsafe { Arc::from_raw(data.cast::<Self>()) });
    }

    unsafe fn drop(data: *const ()) {
        // SAFETY: as above.
        let hooks = unsafe { Arc::from_raw(data.cast::<Self>()) };
        (hooks.dropped)();
    }
}

#[test]
fn waker_that_uses_its_stream_when_cloned_is_cloned_under_no_lock() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let gate = Gate::before(&setup.device, &[&stream]);
        let fence = stream.fence().unwrap();
        let same = fence.clone();
        let waker = Hooks::waker(
            move || assert!(!same.timeline().wake_at(same.point(), Waker::noop()), "it is held back"),
            || {},
        );
        assert!(!fence.timeline().wake_at(fence.point(), &waker));
        gate.open();
        fence.wait().unwrap();
        pollster::block_on(fence.done()).unwrap();
        drop((waker, fence, stream));
        setup.finish();
    });
}

#[test]
fn wakers_that_panic_when_dropped_end_nobody_else() {
    limited(|| {
        let setup = Setup::new();
        let (stream, witness) =
            (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let gate = Gate::before(&setup.device, &[&stream]);
        for _ in 0..100 {
            let other = CudaStream::new(&setup.device).unwrap();
            gate.hold([&other]);
            let fence = other.fence().unwrap();
            let waker = Hooks::waker(|| {}, || panic!("by the test"));
            assert!(!fence.timeline().wake_at(fence.point(), &waker));
            // Its own handle is the test's to drop; the clone goes with the stream, on this thread or the reactor's.
            std::mem::forget(waker);
            drop((fence, other));
        }
        let (called, calls) = mpsc::channel();
        witness.add_callback(move |outcome| called.send(outcome).unwrap()).unwrap();
        calls.recv_timeout(PATIENCE).expect("nothing wakes anyone any more").unwrap();
        gate.open();
        stream.synchronize().unwrap();
        drop((stream, witness));
        setup.finish();
    });
}
