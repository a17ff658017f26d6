//! A hold is an open host view to everyone else, and becomes the use of what was enqueued under it.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use transload_core::{
    Access, DeviceId, ErrorKind, Fence, MemoryKind, RangeGuard, RawBuffer, Result, Timeline, TimelineId,
    TryLockResult, next_timeline_id,
};

use crate::mock::{DEVICE, MockQueue, buffer, host_buffer};

fn held(buffer: &RawBuffer, access: Access) -> RangeGuard {
    match buffer.try_lock_range(access).unwrap() {
        TryLockResult::Locked(hold) => hold,
        TryLockResult::Blocked(blocked) => panic!("{blocked:?}"),
    }
}

#[test]
fn work_conflicting_with_range_guard_is_busy() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let reading = held(&a, Access::Read);
    drop(held(&a, Access::Read));
    drop(a.read().unwrap());
    assert_eq!(queue.copy(&b, &a).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(a.try_lock_range(Access::Write).unwrap_err().kind(), ErrorKind::Busy);
    queue.copy(&a, &b).unwrap();
    queue.complete(1);
    drop(reading);
    let half = a.slice(..50).unwrap();
    let writing = held(&half, Access::Write);
    drop(half);
    assert_eq!(writing.buffer().len(), 50);
    assert_eq!(queue.copy(&a, &b).unwrap_err().kind(), ErrorKind::Busy);
    queue.write(&a.slice(50..).unwrap()).unwrap();
    drop(writing);
    queue.copy(&a, &b).unwrap();
}

#[test]
fn range_guard_follows_work_in_flight_without_waiting() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    queue.copy(&b, &a).unwrap();
    let TryLockResult::Blocked(blocked) = a.try_lock_range(Access::Read).unwrap() else {
        panic!("it is written")
    };
    assert_eq!(blocked.check().unwrap_err().kind(), ErrorKind::Busy);
    drop(held(&b, Access::Read));
    let TryLockResult::Blocked(blocked) = a.try_lock_range(Access::Write).unwrap() else {
        panic!("it is written")
    };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| blocked.wait().unwrap());
        queue.complete(1);
        waiting.join().unwrap();
    });
    drop(held(&a, Access::Write));
}

#[test]
fn committed_range_guard_precedes_later_work() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let fence = queue.copy(&b, &buffer(100)).unwrap();
    // SAFETY: nothing was enqueued on it; the fence stands for work that was.
    unsafe { held(&a, Access::Write).commit(&fence) };
    assert_eq!(a.try_read().unwrap_err().kind(), ErrorKind::Busy);
    queue.complete(1);
    drop(a.try_read().unwrap());
}

#[test]
fn write_count_changes_only_with_writes() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let before = (a.writes(), b.writes());
    queue.copy(&a, &b).unwrap();
    queue.complete(1);
    drop(a.read().unwrap());
    drop(held(&a, Access::Read));
    assert_eq!((a.writes(), b.writes()), (before.0, before.1 + 1));
    drop(a.write().unwrap());
    drop(held(&a.slice(3..4).unwrap(), Access::Write));
    assert_eq!(a.writes(), before.0 + 2);
}

/// Over from the beginning; its end is noted, which for a stream would be calls of its driver.
struct Ended(TimelineId, Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

// SAFETY: it counts no work.
unsafe impl Timeline for Ended {
    fn id(&self) -> TimelineId {
        self.0
    }

    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn reached(&self) -> u64 {
        u64::MAX
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn range_guard_drops_no_timeline() {
    for access in [Access::Read, Access::Write] {
        let ended = Arc::new(AtomicBool::new(false));
        let a = host_buffer(MemoryKind::Pinned, 100);
        let fence = Fence::new(Arc::new(Ended(next_timeline_id(), Arc::clone(&ended))), 1);
        // SAFETY: nothing was enqueued.
        unsafe { held(&a, Access::Write).commit(&fence) };
        drop(fence);
        let again = held(&a, access);
        assert!(!ended.load(Ordering::SeqCst), "the table's handle was the last one");
        drop(again);
        drop(a.write().unwrap());
        assert!(ended.load(Ordering::SeqCst), "a caller that may call the driver removes complete work");
    }
}
