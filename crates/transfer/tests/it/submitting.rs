//! Awaited copies on a queue of the caller's: one that blocks the driver, and one of a single thread.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    task::{Context, Waker},
    thread::{self, ThreadId},
};

use transload_core::{
    DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Place, Queue, Result, StreamPriority, Timeline,
    Timing,
};
use transload_transfer::CopyFuture;

use crate::{MOCK, Mock, beside_cpu, gate::Gate, is_at_rest, pair, watchdog::within, with};

/// A queue of a caller's. Each operation on it blocks until a gate opens, and then is refused.
#[derive(Clone)]
struct CallersQueue {
    timeline: Arc<dyn Timeline>,
    until: Fence,
    /// Tells which threads use it.
    threads: Sender<ThreadId>,
    /// The only thread that may.
    owner: Option<ThreadId>,
}

impl CallersQueue {
    fn new(until: &Fence, owner: Option<ThreadId>) -> (Self, Receiver<ThreadId>) {
        let (threads, seen) = mpsc::channel();
        let timeline = Arc::clone(Gate::new().fence().timeline());
        (Self { timeline, until: until.clone(), threads, owner }, seen)
    }

    fn check_thread(&self) -> Result<()> {
        match self.owner.is_none_or(|owner| owner == thread::current().id()) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::InvalidArgument, "the queue of another thread")),
        }
    }
}

// SAFETY: no operation is ever enqueued.
unsafe impl Queue for CallersQueue {
    fn device(&self) -> DeviceId {
        MOCK
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        self.check_thread()?;
        self.threads.send(thread::current().id()).unwrap();
        self.until.wait()?;
        Err(Error::new(ErrorKind::Device, "refused once it was its turn"))
    }

    fn outstanding(&self) -> u64 {
        0
    }

    fn with_raw_handle(&self, call: &mut dyn FnMut(usize)) -> Result<()> {
        self.check_thread()?;
        call(0);
        Ok(())
    }
}

fn is_pending(future: &mut CopyFuture) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn blocked_stream_holds_up_no_other_submission() {
    within("a copy beside twenty that block", || {
        let (manager, _backend) = with(Mock::default());
        let gate = Gate::new();
        let (queue, used) = CallersQueue::new(&gate.fence(), None);
        let blocked: Vec<_> = (0..20)
            .map(|_| {
                let (src, dst) = pair(&manager, 64);
                let mut copying = manager.copy(&src, &dst).on(&queue).into_future();
                assert!(is_pending(&mut copying));
                copying
            })
            .collect();
        used.recv().unwrap();
        let (src, dst) = pair(&manager, 64);
        pollster::block_on(manager.copy(&src, &dst).into_future()).unwrap();
        let other_gate = Gate::new();
        other_gate.open();
        let (other, _used) = CallersQueue::new(&other_gate.fence(), None);
        let refused = pollster::block_on(manager.copy(&src, &dst).on(&other).into_future()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Device);
        gate.open();
        for copying in blocked {
            assert_eq!(pollster::block_on(copying).unwrap_err().kind(), ErrorKind::Device);
        }
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn dropped_submission_holds_no_buffers_while_others_block() {
    within("a copy dropped behind one that blocks", || {
        let (manager, _backend) = with(Mock::default());
        let gate = Gate::new();
        let (queue, used) = CallersQueue::new(&gate.fence(), None);
        let (src, dst) = pair(&manager, 64);
        let mut first = manager.copy(&src, &dst).on(&queue).into_future();
        assert!(is_pending(&mut first));
        used.recv().unwrap();
        let held = manager.resource_counts();
        let (src, dst) = pair(&manager, 64);
        let mut second = manager.copy(&src, &dst).on(&queue).into_future();
        assert!(is_pending(&mut second));
        drop((src, dst));
        assert_ne!(manager.resource_counts(), held);
        drop(second);
        assert_eq!(manager.resource_counts(), held);
        gate.open();
        pollster::block_on(first).unwrap_err();
        manager.drain().unwrap();
        assert!(used.try_recv().is_err(), "the dropped copy is not submitted");
    });
}

#[test]
fn queue_of_one_thread_is_used_by_the_polling_thread() {
    within("a copy on a queue of this thread", || {
        let (manager, _backend) = beside_cpu();
        let gate = Gate::new();
        gate.open();
        let (queue, used) = CallersQueue::new(&gate.fence(), Some(thread::current().id()));
        for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
            let src = match kind {
                MemoryKind::Pinned => manager.allocate_for(MOCK, kind, 64).unwrap(),
                _ => manager.allocate(DeviceId::Cpu, kind, 64).unwrap(),
            };
            let dst = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
            let copying = manager.copy(&src, &dst).on(&queue).into_future();
            assert_eq!(pollster::block_on(copying).unwrap_err().kind(), ErrorKind::Device);
            assert_eq!(used.recv().unwrap(), thread::current().id(), "{kind}");
            let theirs = manager.copy(&src, &dst).on(&queue).into_future();
            let refused = thread::spawn(move || pollster::block_on(theirs).unwrap_err());
            assert_eq!(refused.join().unwrap().kind(), ErrorKind::InvalidArgument, "{kind}");
        }
        assert!(is_at_rest(&manager));
    });
}
