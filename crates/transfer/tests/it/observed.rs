//! Observers that panic, drain or count while a transfer is submitted; ids of observed transfers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use parking_lot::Mutex;
use transload_core::{Observer, TransferEvent, Wanted};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    Mock, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::staged,
};

const LENGTH: usize = 3 << 20;

/// Calls a closure once, when a transfer was submitted.
#[derive(Default)]
struct OnSubmitted {
    #[allow(clippy::type_complexity)]
    call: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    wants: AtomicU32,
    submitted: AtomicU32,
}

impl Observer for OnSubmitted {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Submitted { .. } = event {
            self.submitted.fetch_add(1, Ordering::Relaxed);
            let call = self.call.lock().take();
            if let Some(call) = call {
                call();
            }
        }
    }

    fn wants(&self, _: u64) -> Wanted {
        self.wants.fetch_add(1, Ordering::Relaxed);
        Wanted::Events
    }
}

fn observed() -> (Arc<OnSubmitted>, CrossBackendTransferManager) {
    let observer = Arc::new(OnSubmitted::default());
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&observer) as _).build();
    manager.register_backend(Mock::default().build() as _).unwrap();
    (observer, manager)
}

/// `waits`: by `wait()`, to which the first step is left; else by `submit()`, as a control.
fn panics_when_submitted(waits: bool) {
    let (observer, manager) = observed();
    let (src, dst) = pair(&manager, LENGTH);
    set_bytes(&src, 7);
    *observer.call.lock() = Some(Box::new(|| panic!("planted")));
    let copy = manager.copy(&src, &dst).options(staged());
    let end = catch_unwind(AssertUnwindSafe(|| if waits { drop(copy.wait()) } else { drop(copy.submit()) }));
    assert!(end.is_err());
    drop(src);
    drop(dst);
    manager.drain().unwrap();
    assert!(is_at_rest(&manager), "the copy was never begun: it and its buffers are kept for good");
}

#[test]
fn submitted_copy_ends_though_its_observer_panics() {
    panics_when_submitted(false);
}

#[test]
fn waited_copy_ends_though_its_observer_panics() {
    panics_when_submitted(true);
}

fn drained_by_another(waits: bool) {
    let (observer, manager) = observed();
    let (src, dst) = pair(&manager, LENGTH);
    set_bytes(&src, 7);
    let seen = Arc::new(Mutex::new(None));
    let (drains, watched, result) = (manager.clone(), dst.clone(), Arc::clone(&seen));
    *observer.call.lock() = Some(Box::new(move || {
        let drained = thread::spawn(move || {
            drains.drain().unwrap();
            // No operation is in flight after a drain.
            watched.in_flight().is_some_and(|fences| fences.iter().all(|fence| fence.is_known_complete()))
        });
        *result.lock() = Some(drained.join().unwrap());
    }));
    let copy = manager.copy(&src, &dst).options(staged());
    if waits {
        copy.wait().unwrap()
    } else {
        copy.submit().wait().unwrap()
    };
    assert!(bytes(&dst) == vec![7; LENGTH]);
    assert_eq!(*seen.lock(), Some(true), "drain returned before a submitted copy had begun");
}

#[test]
fn drain_waits_for_a_submitted_copy() {
    drained_by_another(false);
}

#[test]
fn drain_waits_for_a_waited_copy() {
    drained_by_another(true);
}

#[test]
fn observer_is_asked_once_about_a_list_of_a_task() {
    let (observer, manager) = observed();
    let (src, dst) = pair(&manager, LENGTH);
    let half = LENGTH / 2;
    let part = |of: &transload_core::RawBuffer, at: usize| of.slice(at * half..(at + 1) * half).unwrap();
    let pairs = [(part(&src, 0), part(&dst, 1)), (part(&src, 1), part(&dst, 0))];
    let report = pollster::block_on(async { manager.copy_many(&pairs).options(staged()).await });
    report.unwrap();
    let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
    assert_eq!(load(&observer.wants), load(&observer.submitted), "asked, submitted");
}

#[cfg(feature = "serde")]
#[test]
fn observed_id_equals_itself_when_read_back() {
    let (_observer, manager) = observed();
    let (src, dst) = pair(&manager, 64);
    let id = manager.copy(&src, &dst).wait().unwrap().id.unwrap();
    let back: transload_core::TransferId =
        serde_json::from_str(&serde_json::to_string(&id).unwrap()).unwrap();
    assert_eq!((back.get(), back), (id.get(), id));
}

#[cfg(feature = "serde")]
#[test]
fn numbers_of_transfers_are_read_whole_or_refused() {
    for number in [1_u64 << 63, u64::MAX] {
        let back: Result<transload_core::TransferId, _> = serde_json::from_str(&number.to_string());
        if let Ok(back) = back {
            assert_eq!(back.get(), number);
        }
    }
}
