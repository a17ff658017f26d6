//! The spin lock, as other crates use it.

use transload_core::SpinLock;

#[test]
fn held_lock_survives_failed_try_lock() {
    let lock = SpinLock::new(());
    let held = lock.lock();
    assert!(lock.try_lock().is_none());
    assert!(lock.try_lock().is_none(), "the first attempt has opened it");
    drop(held);
    assert!(lock.try_lock().is_some());
}
