//! Registrations are ordered after work in flight on the buffer.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use transload_core::{Access, Claims, ErrorKind};
use transload_memory::{CudaMemoryManager, RegistrationCache};

use super::{gate::Gate, heap::heap, manager};

#[test]
fn registering_waits_for_work_in_flight() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let cache = Arc::new(RegistrationCache::new(&memory, u64::MAX).unwrap());
    let (buffer, _) = heap(100_000, true);
    let held = Gate::before(&buffer);
    let (sender, receiver) = channel();
    let (in_thread, of_thread) = (Arc::clone(&cache), buffer.clone());
    let registering = thread::spawn(move || {
        let _test_is_over = sender.send(in_thread.register(&of_thread).map(drop));
    });
    let early = receiver.recv_timeout(Duration::from_millis(200));
    assert_eq!(early.err(), Some(RecvTimeoutError::Timeout), "registered under work in flight");
    held.open();
    receiver.recv_timeout(Duration::from_secs(20)).expect("not registered after the work").unwrap();
    registering.join().unwrap();
    drop((buffer, cache));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn registration_with_work_in_flight_does_not_end() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = heap(100_000, true);
    let pinned = cache.register(&buffer).unwrap();
    let held = Gate::new();
    let claims = Claims::acquire(&mut [(&pinned, Access::Read)]).unwrap();
    // SAFETY: nothing uses the bytes, so the fence may stand for any work on them; nothing was in flight before.
    unsafe { claims.commit(&held.fence()) };
    drop(pinned);
    assert_eq!(cache.forget(&buffer).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(cache.trim().unwrap(), 0);
    assert_eq!(cache.statistics().registrations, 1);
    held.open();
    cache.forget(&buffer).unwrap();
    assert_eq!(cache.statistics().registrations, 0);
    drop((buffer, cache));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    device.assert_no_live_objects();
}

/// A copy may read the bytes through the view.
#[test]
fn registration_does_not_end_while_a_view_or_a_loan_is_open() {
    let (device, memory) = manager();
    let memory: Arc<CudaMemoryManager> = Arc::new(memory);
    let (buffer, _) = heap(100_000, true);
    let part = buffer.slice(..10).unwrap();
    for is_lent in [false, true] {
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        drop(cache.register(&buffer).unwrap());
        let (view, loan) = match is_lent {
            false => (Some(part.read().unwrap()), None),
            true => (None, Some(part.lend(Access::Read).unwrap())),
        };
        assert_eq!(cache.forget(&buffer).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(cache.trim().unwrap(), 0);
        assert_eq!(cache.statistics().registrations, 1);
        drop(cache);
        assert_eq!(memory.drain().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(memory.resource_counts().pending_free, 1);
        drop((view, loan));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    }
    drop((part, buffer, memory));
    device.assert_no_live_objects();
}
