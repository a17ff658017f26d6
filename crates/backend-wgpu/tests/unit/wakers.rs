//! The thread that wakes tasks, which looks at a device only while one waits.

use std::{
    any::Any,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Sender},
    },
    task::Wake,
    thread::ThreadId,
};

use transload_core::{DeviceId, Result, TimelineId, next_timeline_id};

use super::*;

/// A device's timeline that reaches a point at the end of the wait for it, and counts its calls.
struct Counted {
    id: TimelineId,
    reached: AtomicU64,
    calls: AtomicU64,
}

// SAFETY: there is no work that could touch memory.
unsafe impl Timeline for Counted {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Other("nobody", 0)
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Relaxed)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(self.reached() >= point)
    }

    fn wait(&self, point: u64) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.reached.store(point, Ordering::Relaxed);
        Ok(())
    }

    fn wake_at(&self, point: u64, _: &Waker) -> bool {
        self.reached() >= point
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A task that tells by which thread it was woken, and how many handles the timeline had then.
struct Told(Arc<Counted>, Sender<(ThreadId, usize)>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.1.send((thread::current().id(), Arc::strong_count(&self.0))).unwrap();
    }
}

#[test]
fn one_thread_looks_at_a_device_and_only_while_a_task_waits() {
    let wakers = Arc::new(Wakers::default());
    let counted =
        Arc::new(Counted { id: next_timeline_id(), reached: AtomicU64::new(0), calls: AtomicU64::new(0) });
    assert_eq!(Arc::strong_count(&wakers), 1, "there is a thread without a task");
    let (sender, told) = mpsc::channel();
    let mut threads = Vec::new();
    for point in 1..=3 {
        let before = counted.calls.load(Ordering::Relaxed);
        let waker = Waker::from(Arc::new(Told(Arc::clone(&counted), sender.clone())));
        assert!(wakers.add(Arc::clone(&counted) as _, point, &waker));
        drop(waker);
        let (thread, handles) = told.recv().unwrap();
        // That of this test and the task's: the thread has none, so it can look at nothing.
        assert_eq!(handles, 2);
        assert_eq!(counted.calls.load(Ordering::Relaxed) - before, 2, "polls and waits for one task");
        threads.push(thread);
    }
    assert!(threads.iter().all(|thread| *thread == threads[0] && *thread != thread::current().id()));
    wakers.close();
    // Its thread has a handle, until it ends.
    while Arc::strong_count(&wakers) > 1 {
        thread::yield_now();
    }
}
