//! The brief lock, as other crates use it.

use transload_core::SpinLock;

#[test]
fn lock_that_is_held_stays_held_when_others_try_to_take_it() {
    let lock = SpinLock::new(());
    let held = lock.lock();
    assert!(lock.try_lock().is_none());
    assert!(lock.try_lock().is_none(), "the first attempt has opened it");
    drop(held);
    assert!(lock.try_lock().is_some());
}
