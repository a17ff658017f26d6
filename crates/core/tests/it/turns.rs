//! Turns on one buffer where they are easily mixed up: several who wait for one claim, and commits that come out of order.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Wake, Waker},
};

use transload_core::{Access, Claims, ErrorKind, Fence, Queue};

use crate::mock::{MockQueue, buffer, key};

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn all_tasks_waiting_for_a_claim_are_woken() {
    let dst = buffer(64);
    let claims = Claims::acquire(&mut [(&dst, Access::Write)]).unwrap();
    let woken: Vec<Arc<Woken>> = (0..3).map(|_| Arc::default()).collect();
    let (mut one, mut two, mut three) =
        (pin!(dst.read_async()), pin!(dst.write_async()), pin!(dst.read_async()));
    for (index, task) in woken.iter().enumerate() {
        let waker = Waker::from(Arc::clone(task));
        let mut context = Context::from_waker(&waker);
        let pending = match index {
            0 => one.as_mut().poll(&mut context).is_pending(),
            1 => two.as_mut().poll(&mut context).is_pending(),
            _ => three.as_mut().poll(&mut context).is_pending(),
        };
        assert!(pending, "{index}");
    }
    drop(claims);
    for (index, task) in woken.iter().enumerate() {
        assert!(task.0.load(Ordering::SeqCst) >= 1, "task {index} sleeps for good");
    }
}

#[test]
fn reads_committed_out_of_order_complete_with_the_last() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    let fence = |point| Fence::new(Arc::clone(queue.timeline()), point);
    (0..2).for_each(|_| drop(queue.write(&buffer(8)).unwrap()));
    // Two threads submit to one queue, and the first one is slow to say so.
    let [slow, quick] = [(); 2].map(|()| Claims::acquire(&mut [(&dst, Access::Read)]).unwrap());
    // SAFETY: nothing is behind the points of this queue but what the test says.
    unsafe {
        quick.commit(&fence(2));
        slow.commit(&fence(1));
    }
    queue.complete(1);
    assert_eq!(dst.try_write().unwrap_err().kind(), ErrorKind::Busy, "the later one still reads");
    let other = MockQueue::new();
    other.write(&dst).unwrap();
    assert_eq!(other.last_after(), [key(&fence(2))]);
    queue.complete(2);
    other.complete(1);
    assert!(dst.try_write().is_ok());
}

#[test]
fn in_flight_is_none_while_enqueueing() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    assert_eq!(dst.in_flight().map(|fences| fences.len()), Some(0));
    let claims = Claims::acquire(&mut [(&dst, Access::Read)]).unwrap();
    assert!(dst.in_flight().is_none(), "nobody knows its fence yet");
    let read = queue.write(&buffer(8)).unwrap();
    // SAFETY: nothing is behind the points of this queue but what the test says.
    unsafe { claims.commit(&read) };
    assert_eq!(dst.in_flight().map(|fences| fences.len()), Some(1));
    queue.complete(1);
    assert_eq!(dst.in_flight().map(|fences| fences.len()), Some(0));
}

/// A timeline that never says of itself how far it is; it must be asked.
#[test]
fn view_opens_over_work_complete_only_by_poll() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    queue.write(&dst).unwrap();
    assert_eq!(dst.try_read().unwrap_err().kind(), ErrorKind::Busy);
    queue.silently_over.store(true, Ordering::SeqCst);
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let opened = dst.try_read().map(drop).and_then(|()| dst.try_write().map(drop));
        let _late = done.send(opened);
    });
    outcome.recv_timeout(std::time::Duration::from_secs(60)).expect("it hangs").unwrap();
}
