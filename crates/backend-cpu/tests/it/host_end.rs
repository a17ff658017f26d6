//! Work that ends by host threads alone says so, and ends even if all workers are blocked.

use std::{
    sync::{Arc, mpsc},
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_core::{Fence, Operation, Pattern, Timing, submit};
use transload_executor::Executor;

use crate::{allocate, gate::Gate, lease, noise};

const LIMIT: Duration = Duration::from_secs(30);
/// More than runs in the submitting thread.
const BYTES: usize = 5 << 20;

fn ends_by_host_alone(fence: &Fence) -> bool {
    fence.timeline().ends_by_host_alone(fence.point())
}

#[test]
fn work_behind_a_fence_does_not_end_by_the_host_alone() {
    let backend = crate::backend(1, usize::MAX);
    let (gate, queue) = (Gate::new(), lease(&backend));
    let (first, second) = (allocate(&backend, BYTES), allocate(&backend, BYTES));
    let fill = |dst| submit(&*queue, &Operation::Fill { dst, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
    submit(&gate, &Operation::Fill { dst: &first, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    let (behind, after) = (fill(&first), fill(&second));
    assert!(!ends_by_host_alone(&behind));
    assert!(!ends_by_host_alone(&after));
    gate.open();
    after.wait().unwrap();
    assert!(!ends_by_host_alone(&after), "complete work has no end to come");
}

struct Noted(Arc<Mutex<Vec<&'static str>>>, mpsc::Sender<()>);

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.0.lock().push("waker");
        self.1.send(()).unwrap();
    }
}

#[test]
fn signalled_work_ends_while_all_workers_are_blocked() {
    for parallel_from in [usize::MAX, 1 << 20] {
        // The spare thread begins after 20 ms: if this one pauses longer, it sees only the end.
        assert!((0..20).any(|_| ends_in_order(parallel_from)));
    }
}

/// Returns whether what waited for a copy that no worker could run was told in order; `false` too if the copy was over before it waited.
fn ends_in_order(parallel_from: usize) -> bool {
    let executor = Executor::with_threads(1).unwrap();
    let backend = CpuBackend::builder().executor(&executor).parallel_from(parallel_from).build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let blocked = executor.spawn(async move {
        begun.send(()).unwrap();
        let _until_dropped = released.recv();
    });
    has_begun.recv().unwrap();
    let (src, dst, queue) = (allocate(&backend, BYTES), allocate(&backend, BYTES), lease(&backend));
    src.write().unwrap().copy_from_slice(&noise(1, BYTES));
    let copied = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    let later = submit(&*queue, &Operation::Copy { src: &dst, dst: &src }, Timing::Off).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (woken, is_woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Noted(Arc::clone(&order), woken)));
    assert!(!copied.timeline().wake_at(copied.point(), &waker));
    assert!(!ends_by_host_alone(&later), "the end of the first one may call a driver");
    let is_by_host = ends_by_host_alone(&copied);
    let noted = Arc::clone(&order);
    copied.timeline().signal_at(copied.point(), Box::new(move || noted.lock().push("signal")));
    is_woken.recv_timeout(LIMIT).unwrap();
    let is_in_order = *order.lock() == ["signal", "waker"];
    assert!(copied.is_known_complete());
    drop(release);
    blocked.wait().unwrap();
    later.wait().unwrap();
    assert!(*dst.read().unwrap() == noise(1, BYTES)[..]);
    // Too late to be stored.
    let (called, is_called) = mpsc::channel();
    copied.timeline().signal_at(copied.point(), Box::new(move || called.send(()).unwrap()));
    is_called.try_recv().unwrap();
    is_by_host && is_in_order
}

#[test]
fn spare_thread_runs_all_pieces_at_once() {
    const WORKERS: usize = 16;
    /// 30 pieces. The spare thread waits for 20 ms before it begins.
    const LARGE: usize = 15 << 20;
    let executor = Executor::with_threads(WORKERS).unwrap();
    let backend = CpuBackend::builder().executor(&executor).parallel_from(0).build().unwrap();
    let (src, dst, queue) = (allocate(&backend, LARGE), allocate(&backend, LARGE), lease(&backend));
    src.write().unwrap().fill(7);
    let gate = Arc::new(std::sync::Barrier::new(WORKERS + 1));
    let blocked = [(); WORKERS].map(|()| {
        let gate = Arc::clone(&gate);
        executor.spawn(async move {
            gate.wait();
            gate.wait();
        })
    });
    gate.wait();
    // With a wait before each piece no round takes less than 600 ms. Without it, only a busy machine makes one so slow.
    let is_fast = (0..20).any(|_| {
        let copied = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
        let begun = Instant::now();
        assert!(ends_by_host_alone(&copied));
        copied.wait().unwrap();
        begun.elapsed() < Duration::from_millis(500)
    });
    assert!(is_fast);
    gate.wait();
    blocked.into_iter().for_each(|task| task.wait().unwrap());
    assert!(dst.read().unwrap().iter().all(|byte| *byte == 7));
}
