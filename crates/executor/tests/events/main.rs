//! The executor's events, in the situations that `transload_core::events` names. A program of its own with one test, since the
//! subscriber and the limit on threads are the process's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../core/tests/shared/event_log.rs"]
mod event_log;
#[path = "../shared/no_threads.rs"]
mod no_threads;

use event_log::{find, record};
use no_threads::NoThreads;
use transload_core::events;
use transload_executor::{BlockingKey, DropQueue, Executor};

struct Panicking;

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("planted panic");
    }
}

#[test]
fn owners_panics_and_refused_threads_are_reported() {
    let executor = Executor::with_threads(1).unwrap();
    let drops = DropQueue::new(executor.clone());
    let records = record(|| {
        drops.push(Box::new(1), Vec::new());
        drops.push(Box::new(Panicking), Vec::new());
        drops.drain().unwrap();
        executor.spawn(async { panic!("planted panic") }).wait().unwrap_err();
        executor.drain().unwrap();
    });
    let owners = find(&records, events::OWNER_DROPPED, events::THREADS, &["elapsed_ns"]);
    let panics = find(&records, events::PANIC_CAUGHT, events::THREADS, &["text"]);
    assert_eq!((owners.len(), panics.len()), (2, 2));
    assert!(panics.iter().all(|panic| panic.field("text") == Some("planted panic")));

    let idle = Executor::with_threads(1).unwrap();
    let records = record(|| {
        let none = NoThreads::new();
        idle.spawn(async {}).wait().unwrap_err();
        idle.spawn_thread(|| ()).wait().unwrap_err();
        idle.spawn_blocking(&BlockingKey::new(1), || ()).wait().unwrap_err();
        drop(none);
    });
    let refused = find(&records, events::THREAD_REFUSED, events::THREADS, &["error"]);
    let what: Vec<_> = refused.iter().map(|record| record.field("what").unwrap()).collect();
    assert_eq!(what, ["worker of the executor", "a long call", "calls that may block"]);
}
