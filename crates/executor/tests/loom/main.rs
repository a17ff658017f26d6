//! Every interleaving of the sleep protocol that loom finds with three preemptions. The file under test is included as it
//! is, with loom's primitives for std's.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use loom::{
    sync::{Arc, atomic::AtomicUsize},
    thread,
};

use crate::{
    idle::Idle,
    sync::{Ordering, fence},
};

mod sync;

#[path = "../../src/idle.rs"]
mod idle;

/// Work as a number of pieces, and the protocol beside it.
#[derive(Default)]
struct Pool {
    idle: Idle,
    pieces: AtomicUsize,
    done: AtomicUsize,
    closing: AtomicUsize,
}

impl Pool {
    fn push(&self) {
        self.pieces.fetch_add(1, Ordering::Release);
        // Threads exist from the beginning here: none is started.
        self.idle.notify();
    }

    fn has_work(&self) -> bool {
        self.pieces.load(Ordering::Acquire) > 0
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire) > 0
    }

    fn pop(&self) -> bool {
        self.pieces.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1)).is_ok()
    }

    /// Like a worker, without the time that it spends searching.
    fn work(&self) {
        self.idle.begin();
        loop {
            if self.pop() {
                self.idle.found(|| self.has_work());
                loop {
                    self.done.fetch_add(1, Ordering::Relaxed);
                    if !self.pop() {
                        break;
                    }
                }
                self.idle.begin();
            } else if self.is_closing() {
                self.idle.found(|| false);
                return;
            } else {
                self.idle.sleep(|| self.has_work() || self.is_closing());
            }
        }
    }

    fn close(&self) {
        self.closing.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.idle.wake_all();
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

fn workers(pool: &Arc<Pool>, count: usize) -> Vec<thread::JoinHandle<()>> {
    (0..count)
        .map(|_| {
            let pool = Arc::clone(pool);
            thread::spawn(move || pool.work())
        })
        .collect()
}

/// A wake that is lost leaves a worker asleep for ever, which loom reports as a deadlock.
#[test]
fn one_worker_gets_every_push() {
    model(|| {
        let pool = Arc::new(Pool::default());
        let workers = workers(&pool, 1);
        pool.push();
        while pool.done.load(Ordering::Relaxed) < 1 {
            thread::yield_now();
        }
        pool.push();
        while pool.done.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        pool.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn two_workers_get_every_push_of_two_threads() {
    model(|| {
        let pool = Arc::new(Pool::default());
        let workers = workers(&pool, 2);
        pool.push();
        pool.push();
        while pool.done.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        pool.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// While one worker is held up by its piece, a further push must wake the other.
#[test]
fn held_up_worker_delays_no_other() {
    model(|| {
        let pool = Arc::new(Pool::default());
        let release = Arc::new(AtomicUsize::new(0));
        let other = {
            let (pool, release) = (Arc::clone(&pool), Arc::clone(&release));
            thread::spawn(move || {
                // A worker in a driver's call: it is no searcher as long as that takes.
                pool.idle.begin();
                pool.idle.found(|| pool.has_work());
                while release.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
            })
        };
        let workers = workers(&pool, 1);
        pool.push();
        while pool.done.load(Ordering::Relaxed) < 1 {
            thread::yield_now();
        }
        release.store(1, Ordering::Release);
        other.join().unwrap();
        pool.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}
