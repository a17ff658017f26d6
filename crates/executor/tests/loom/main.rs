//! Loom models of the sleep protocol, with two preemptions, or one if there are two workers. The file under test is included
//! unchanged, with loom's primitives instead of std's.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use loom::{
    sync::{Arc, Condvar, Mutex, atomic::AtomicUsize},
    thread,
};

use crate::{
    idle::Idle,
    sync::{Ordering, fence},
};

mod sync;

#[allow(dead_code, reason = "the searching phase has no part in the model")]
#[path = "../../src/idle.rs"]
mod idle;

/// A number of pieces of work, and the protocol under test.
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
        // All threads exist from the start: none is spawned.
        self.idle.notify();
    }

    fn push_several(&self, count: usize) {
        self.pieces.fetch_add(count, Ordering::Release);
        self.idle.notify_several(count);
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

    /// Like a worker, without the searching phase.
    fn work(&self) {
        self.work_until(usize::MAX);
    }

    /// Ends after `most` pieces, or when the pool is closed and empty.
    fn work_until(&self, most: usize) {
        self.idle.begin();
        loop {
            if self.done.load(Ordering::Relaxed) >= most {
                self.idle.found(|| false);
                return;
            }
            if self.pop() {
                self.idle.found(|| self.has_work());
                loop {
                    self.done.fetch_add(1, Ordering::Relaxed);
                    if !self.pop() {
                        break;
                    }
                }
                self.idle.begin();
            } else if self.is_closing() && !self.has_work() {
                self.idle.found(|| false);
                return;
            } else {
                self.idle.park(|| self.has_work() || self.is_closing());
            }
        }
    }

    fn close(&self) {
        self.closing.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.idle.wake_all();
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
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

/// A lost wake leaves a worker asleep for ever, which loom reports as a deadlock.
#[test]
fn one_worker_gets_every_push() {
    model(2, || {
        let pool = Arc::new(Pool::default());
        let workers = workers(&pool, 1);
        pool.push();
        pool.push();
        pool.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(pool.done.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn two_workers_get_every_push() {
    model(1, || {
        let pool = Arc::new(Pool::default());
        let workers = workers(&pool, 2);
        pool.push();
        pool.push();
        pool.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(pool.done.load(Ordering::Relaxed), 2);
    });
}

/// Two workers take one piece each, which end only together. `more` is what a worker that found one reports: whether it
/// wakes the next.
fn two_pieces_end_together(push: impl Fn(&Pool) + Sync + Send + 'static, more: fn(&Pool) -> bool) {
    model(1, move || {
        let pool = Arc::new(Pool::default());
        let both = Arc::new((Mutex::new(0), Condvar::new()));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (pool, both) = (Arc::clone(&pool), Arc::clone(&both));
                thread::spawn(move || {
                    pool.idle.begin();
                    while !pool.pop() {
                        pool.idle.park(|| pool.has_work());
                    }
                    pool.idle.found(|| more(&pool));
                    let mut begun = both.0.lock().unwrap();
                    *begun += 1;
                    both.1.notify_all();
                    while *begun < 2 {
                        begun = both.1.wait(begun).unwrap();
                    }
                })
            })
            .collect();
        // Lets them sleep, which loom does not count as a preemption.
        thread::yield_now();
        thread::yield_now();
        push(&pool);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// A worker that found one piece must have the second worker take the other.
#[test]
fn two_workers_share_the_work() {
    two_pieces_end_together(|pool| (0..2).for_each(|_| pool.push()), Pool::has_work);
}

/// Each piece of a batch gets a worker that does not wait for another one to wake it.
#[test]
fn batch_push_wakes_workers_directly() {
    two_pieces_end_together(|pool| pool.push_several(2), |_| false);
}

#[test]
fn workers_get_every_task_of_a_batch_push() {
    for (preemptions, count, pieces) in [(2, 1, 2), (1, 2, 2)] {
        model(preemptions, move || {
            let pool = Arc::new(Pool::default());
            let workers = workers(&pool, count);
            pool.push_several(pieces);
            pool.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(pool.done.load(Ordering::Relaxed), pieces);
        });
    }
}

/// A thread that the system refuses was counted as a searcher meanwhile, so a push may have left its piece to it.
#[test]
fn refused_thread_loses_no_push() {
    model(2, || {
        let pool = Arc::new(Pool::default());
        let worker = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.work_until(1))
        };
        let refused = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                pool.idle.begin();
                pool.idle.found(|| pool.has_work());
            })
        };
        pool.push();
        worker.join().unwrap();
        refused.join().unwrap();
    });
}

/// Pieces for which there is neither a searcher nor a sleeper.
#[test]
fn useful_threads_counts_the_missing_ones() {
    model(1, || {
        let idle = Idle::default();
        assert_eq!(idle.notify_several(3), 3);
        idle.begin();
        assert_eq!((idle.notify_several(3), idle.notify_several(1), idle.notify_several(0)), (2, 0, 0));
        idle.found(|| false);
        assert_eq!(idle.notify_several(1), 1);
    });
}

/// A worker in a driver call is not a searcher: a push meanwhile must wake the other. The call ends only after that push was
/// taken.
#[test]
fn worker_in_a_driver_call_delays_no_other_worker() {
    model(2, || {
        let pool = Arc::new(Pool::default());
        let served = Arc::new((Mutex::new(false), Condvar::new()));
        let other = {
            let (pool, served) = (Arc::clone(&pool), Arc::clone(&served));
            thread::spawn(move || {
                pool.idle.begin();
                pool.idle.found(|| pool.has_work());
                let mut done = served.0.lock().unwrap();
                while !*done {
                    done = served.1.wait(done).unwrap();
                }
            })
        };
        let worker = {
            let (pool, served) = (Arc::clone(&pool), Arc::clone(&served));
            thread::spawn(move || {
                pool.work_until(1);
                *served.0.lock().unwrap() = true;
                served.1.notify_all();
            })
        };
        pool.push();
        other.join().unwrap();
        worker.join().unwrap();
    });
}
