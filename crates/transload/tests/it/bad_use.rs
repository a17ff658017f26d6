//! Misuse and heavy concurrency: wakers and destructors that panic, a thousand threads that drop transfers in flight,
//! concurrent drains, a host view that stays open. Nothing hangs or is lost, and other users are not affected.

use std::{
    any::Any,
    future::Future as _,
    pin::Pin,
    ptr::NonNull,
    sync::{Arc, Barrier, Mutex, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use transload::{
    ErrorKind, MemoryKind, RawBuffer, Transfer, TransferOptions,
    backend::{HostBytes, Reclaimer},
};

use crate::tasks::{Gate, Home};

/// More than a backend copies on the submitting thread.
const LARGE: usize = (3 << 20) + 17;

/// The step a test is at, to report if it hangs.
#[derive(Clone, Default)]
struct Stage(Arc<Mutex<String>>);

impl Stage {
    fn is(&self, text: impl Into<String>) {
        *self.0.lock().unwrap() = text.into();
    }
}

/// Fails if the test is not complete after a minute, and names its step.
fn within_a_minute(what: impl FnOnce(&Stage) + Send + 'static) {
    let (done, over) = mpsc::channel();
    let stage = Stage::default();
    let theirs = stage.clone();
    let worker = thread::spawn(move || {
        what(&theirs);
        let _test_is_over = done.send(());
    });
    if over.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("not over after a minute; it stands at: {}", stage.0.lock().unwrap());
    }
    worker.join().unwrap();
}

/// Every machine with every way to request transfers on it.
fn ways() -> impl Iterator<Item = (Arc<Home>, TransferOptions)> {
    Home::all().into_iter().flat_map(Home::with_ways)
}

fn name(home: &Home, options: &TransferOptions) -> String {
    format!("{:?} to {:?}, {options:?}", home.near, home.far)
}

fn transfer(home: &Home, src: &RawBuffer, dst: &RawBuffer, options: &TransferOptions) -> Transfer {
    home.manager.copy(src, dst).options(*options).submit()
}

/// Transfers still work in both directions, and can be awaited.
fn works(home: &Home, options: &TransferOptions) {
    let content: Vec<u8> = (0..LARGE).map(|index| (index % 251) as u8).collect();
    let (src, dst) = (home.filled(&content), home.allocate(home.far, LARGE));
    let back = home.allocate(home.near, LARGE);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        transfer(home, &src, &dst, options).await.unwrap();
        transfer(home, &dst, &back, options).await.unwrap();
    });
    assert!(*back.read().unwrap() == content[..]);
}

fn finish(home: Arc<Home>) {
    // The last way of a machine finishes it.
    if let Some(home) = Arc::into_inner(home) {
        home.finish();
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test's");
    }
}

#[test]
fn panicking_waker_affects_no_other_transfer() {
    within_a_minute(|stage| {
        for (home, options) in ways() {
            let name = name(&home, &options);
            let src = home.filled(&vec![7; LARGE]);
            let waker = Waker::from(Arc::new(Panics));
            let mut transfers: Vec<(Transfer, RawBuffer)> = Vec::new();
            for round in 0..20 {
                stage.is(format!("{name}: submitting {round}"));
                let dst = home.allocate(home.far, LARGE);
                let mut transfer = transfer(&home, &src, &dst, &options);
                // Returns a transfer that may be complete already; on the software driver, polling may complete others.
                let poll = || Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker)).is_ready();
                if let Ok(false) = outcome(poll) {
                    transfers.push((transfer, dst));
                }
            }
            for (index, (transfer, _)) in transfers.into_iter().enumerate() {
                stage.is(format!("{name}: waiting for {index}"));
                transfer.wait().unwrap();
            }
            stage.is(format!("{name}: transfers afterwards"));
            works(&home, &options);
            drop(src);
            stage.is(format!("{name}: draining"));
            finish(home);
        }
    });
}

/// Memory of a program whose destructor panics.
struct Grumbles(Vec<u8>);

impl Drop for Grumbles {
    fn drop(&mut self) {
        // A second panic during unwinding would abort the process.
        if !thread::panicking() {
            panic!("a destructor of the test's");
        }
    }
}

fn grumbling(bytes: usize, reclaimer: &Arc<Reclaimer>) -> RawBuffer {
    let mut owner = Grumbles(vec![3; bytes]);
    let address = NonNull::new(owner.0.as_mut_ptr()).unwrap();
    // SAFETY: the vector has so many bytes, which stay where they are when the owner is moved, until it is dropped.
    let storage = unsafe { HostBytes::new(owner, address, bytes, MemoryKind::Pageable, true) };
    RawBuffer::new(Box::new(storage), reclaimer)
}

fn outcome<T>(what: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(what))
}

#[test]
fn panicking_destructor_affects_no_other_transfer() {
    within_a_minute(|stage| {
        for (home, options) in ways() {
            let name = name(&home, &options);
            let reclaimer: Arc<Reclaimer> = Arc::default();
            for round in 0..8 {
                stage.is(format!("{name}: round {round}"));
                let (src, dst) = (grumbling(LARGE, &reclaimer), home.allocate(home.far, LARGE));
                let moving = transfer(&home, &src, &dst, &options);
                // The last handle is dropped while its bytes are read. If the read is complete by then, this thread
                // panics.
                let _panicked_here = outcome(move || drop(src));
                // A wait that helps may drop the transfer's memory last; the panic is then its own.
                if let Ok(report) = outcome(|| moving.wait()) {
                    report.unwrap();
                }
                assert!(dst.wait_idle().is_ok());
                let _panicked_here = outcome(|| reclaimer.sweep());
            }
            stage.is(format!("{name}: transfers afterwards"));
            works(&home, &options);
            stage.is(format!("{name}: draining"));
            let _panicked_here = outcome(|| home.manager.drain());
            while !reclaimer.is_empty() {
                let _panicked_here = outcome(|| reclaimer.drain());
            }
            finish(home);
        }
    });
}

#[test]
fn thousand_threads_dropping_transfers_lose_nothing() {
    const THREADS: usize = 1000;
    const BYTES: usize = 4096;
    within_a_minute(|stage| {
        for (home, options) in ways() {
            let name = name(&home, &options);
            stage.is(format!("{name}: starting threads"));
            let all = Arc::new(home.allocate(home.far, THREADS * BYTES));
            let together = Arc::new(Barrier::new(THREADS));
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (home, all, together) = (Arc::clone(&home), Arc::clone(&all), Arc::clone(&together));
                    let work = move || {
                        let src = home.filled(&[thread as u8; BYTES]);
                        let dst = all.slice(thread * BYTES..(thread + 1) * BYTES).unwrap();
                        together.wait();
                        let moving = transfer(&home, &src, &dst, &options);
                        assert!(moving.refusal().is_none(), "{:?}", moving.refusal());
                        drop((moving, src, dst));
                    };
                    thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap()
                })
                .collect();
            for (index, thread) in threads.into_iter().enumerate() {
                stage.is(format!("{name}: thread {index}"));
                thread.join().unwrap();
            }
            stage.is(format!("{name}: looking at the bytes"));
            let back = home.allocate(home.near, THREADS * BYTES);
            transfer(&home, &all, &back, &TransferOptions::new()).wait().unwrap();
            let seen = back.read().unwrap();
            let wrong = seen.iter().enumerate().find(|(index, byte)| **byte != (index / BYTES) as u8);
            assert_eq!(wrong, None, "{name}");
            drop(seen);
            drop((all, back));
            stage.is(format!("{name}: draining"));
            finish(home);
        }
    });
}

#[test]
fn concurrent_drains_all_wait_for_everything() {
    const TRANSFERS: usize = 24;
    within_a_minute(|stage| {
        for (home, options) in ways() {
            let name = name(&home, &options);
            let src = home.filled(&vec![5; LARGE]);
            stage.is(format!("{name}: submitting"));
            let places: Vec<RawBuffer> = (0..TRANSFERS).map(|_| home.allocate(home.far, LARGE)).collect();
            let fences: Vec<_> = places
                .iter()
                .map(|dst| transfer(&home, &src, dst, &options).fence().unwrap().clone())
                .collect();
            drop((src, places));
            stage.is(format!("{name}: draining from eight threads and a task"));
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            let of_task = Arc::clone(&home);
            let task = runtime.spawn(async move { of_task.manager.drain() });
            thread::scope(|scope| {
                let drains: Vec<_> = (0..8).map(|_| scope.spawn(|| home.manager.drain())).collect();
                for drain in drains {
                    drain.join().unwrap().unwrap();
                    assert!(fences.iter().all(|fence| fence.is_complete()), "{name}: drained too early");
                }
            });
            runtime.block_on(task).unwrap().unwrap();
            drop((runtime, fences));
            finish(home);
        }
    });
}

#[test]
fn a_host_view_that_stays_open_blocks_its_own_range_only() {
    const PART: usize = 300_000;
    within_a_minute(|stage| {
        for (home, options) in ways() {
            let name = name(&home, &options);
            let src = home.filled(&vec![9; 4 * PART]);
            let dst = home.allocate(home.far, 4 * PART);
            let part = |of: &RawBuffer, at: usize| of.slice(at * PART..(at + 1) * PART).unwrap();
            let viewed = part(&src, 1);
            let view = viewed.write().unwrap();
            for round in 0..10 {
                for at in [0, 2, 3] {
                    stage.is(format!("{name}: round {round}, part {at}"));
                    transfer(&home, &part(&src, at), &part(&dst, at), &options).wait().unwrap();
                    transfer(&home, &part(&dst, at), &part(&src, at), &options).wait().unwrap();
                }
                stage.is(format!("{name}: round {round}, the viewed part"));
                let refused = transfer(&home, &part(&src, 1), &part(&dst, 1), &options);
                assert_eq!(refused.refusal().map(transload::Error::kind), Some(ErrorKind::Busy), "{name}");
            }
            stage.is(format!("{name}: draining under the view"));
            home.manager.drain().unwrap();
            drop(view);
            transfer(&home, &part(&src, 1), &part(&dst, 1), &options).wait().unwrap();
            drop((viewed, src, dst));
            finish(home);
        }
    });
}

#[test]
fn transfers_after_endless_work_block_no_others() {
    within_a_minute(|stage| {
        for (home, options) in ways().filter(|(home, _)| home.near.1 == MemoryKind::Pageable) {
            let name = name(&home, &options);
            let held = home.filled(&vec![1; LARGE]);
            let gate = Gate::before(&held);
            // More than the number of workers.
            let threads: Vec<_> = (0..16)
                .map(|_| {
                    let (home, held, dst) = (Arc::clone(&home), held.clone(), home.allocate(home.far, LARGE));
                    // If no queue can wait for the gate, submitting does.
                    thread::spawn(move || drop(transfer(&home, &held, &dst, &options)))
                })
                .collect();
            stage.is(format!("{name}: others beside sixteen that wait"));
            works(&home, &options);
            gate.open(&held, 2);
            stage.is(format!("{name}: the sixteen"));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            drop((held, gate));
            finish(home);
        }
    });
}
