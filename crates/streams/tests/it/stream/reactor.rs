//! The reactor survives anything that tasks do on its thread.

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

const PATIENCE: Duration = Duration::from_secs(60);

type Task = Box<dyn FnOnce() + Send>;

/// An executor that runs its task inside `wake`.
struct Inline(Mutex<Option<Task>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let task = self.0.lock().unwrap().take();
        if let Some(task) = task {
            task();
        }
    }
}

/// Has the reactor run `task` once the fill held by the gate completes.
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
fn task_run_inline_by_its_waker_may_synchronize_a_stream() {
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
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "by the test");
    }
}

#[test]
fn reactor_survives_a_waker_whose_panic_payload_panics() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let gate = run_on_the_reactor(&setup, &stream, Box::new(|| panic_any(PanicsOnDrop)));
    gate.open();
    stream.synchronize().unwrap();
    let (called, calls) = mpsc::channel();
    stream.add_callback(move |outcome| called.send(outcome).unwrap()).unwrap();
    calls.recv_timeout(PATIENCE).expect("nothing wakes anyone any more").unwrap();
    drop(stream);
    setup.finish();
}

/// A waker whose clone and drop run the test's code.
struct WakerHooks {
    cloned: Box<dyn Fn() + Send + Sync>,
    dropped: Box<dyn Fn() + Send + Sync>,
}

impl WakerHooks {
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
fn waker_is_cloned_outside_the_streams_locks() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let gate = Gate::before(&setup.device, &[&stream]);
        let fence = stream.fence().unwrap();
        let same = fence.clone();
        let waker = WakerHooks::waker(
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
fn waker_panicking_on_drop_does_not_affect_others() {
    limited(|| {
        let setup = Setup::new();
        let (stream, witness) =
            (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let gate = Gate::before(&setup.device, &[&stream]);
        for _ in 0..100 {
            let other = CudaStream::new(&setup.device).unwrap();
            gate.hold([&other]);
            let fence = other.fence().unwrap();
            let waker = WakerHooks::waker(|| {}, || panic!("by the test"));
            assert!(!fence.timeline().wake_at(fence.point(), &waker));
            // The test drops its own handle; the clone is dropped with the stream, on this thread or the reactor's.
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
