//! Waiting for work, by threads and by tasks.

use std::{
    any::Any,
    future::Future,
    pin::pin,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
};

use transload_backend_wgpu::wgpu;
use transload_core::{
    Access, Backend, Claims, DeviceId, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Result, Timeline,
    TimelineId, Timing, TrySubmitError, Turns, next_timeline_id,
};

use crate::{MIB, copy, setup};

#[test]
fn wait_returns_after_the_work() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) =
        (setup.filled(MemoryKind::Pinned, 64 * MIB, 9), setup.allocate(MemoryKind::Device, 64 * MIB));
    let back = setup.filled(MemoryKind::Pinned, 64 * MIB, 0);
    copy(&queue, &src, &dst);
    let fence = copy(&queue, &dst, &back);
    fence.wait().unwrap();
    assert!(fence.is_known_complete());
    assert!(back.read().unwrap().iter().all(|byte| *byte == 9));
}

#[test]
fn awaited_fences_wake_their_tasks() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) =
        (setup.filled(MemoryKind::Pinned, 32 * MIB, 9), setup.allocate(MemoryKind::Device, 32 * MIB));
    for _ in 0..4 {
        let fences: Vec<_> = (0..3).map(|_| copy(&queue, &src, &dst)).collect();
        // The last first: a task that waits for an earlier point comes later.
        for fence in fences.into_iter().rev() {
            pollster::block_on(fence.done()).unwrap();
        }
    }
}

#[test]
fn work_goes_on_after_its_backend_was_dropped() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) =
        (setup.filled(MemoryKind::Pinned, 16 * MIB, 3), setup.allocate(MemoryKind::Device, 16 * MIB));
    let back = setup.filled(MemoryKind::Pinned, 16 * MIB, 0);
    copy(&queue, &src, &dst);
    let fence = copy(&queue, &dst, &back);
    drop((setup, queue, src, dst));
    pollster::block_on(fence).unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
}

#[test]
fn point_that_was_never_enqueued_is_an_error() {
    let Some(setup) = setup() else { return };
    let timeline = setup.queue().timeline().clone();
    let later = timeline.reached() + 1000;
    assert_eq!(timeline.wait(later).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(timeline.poll(later).ok(), Some(false));
    // It is a fence of the last point that was.
    Fence::new(timeline, later).wait().unwrap();
    setup.backend.drain().unwrap();
}

/// Work of nobody, which is complete when it is waited for.
struct Waited(TimelineId, AtomicBool);

// SAFETY: there is no work that could touch memory.
unsafe impl Timeline for Waited {
    fn id(&self) -> TimelineId {
        self.0
    }

    fn device(&self) -> DeviceId {
        DeviceId::Other("nobody", 0)
    }

    fn reached(&self) -> u64 {
        u64::from(self.1.load(Ordering::Relaxed))
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        self.1.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn wake_at(&self, point: u64, _: &Waker) -> bool {
        self.reached() >= point
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn fences_of_others_are_waited_for_before_the_copy() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) = (setup.filled(MemoryKind::Pageable, 100, 5), setup.allocate(MemoryKind::Device, 100));
    let others = Arc::new(Waited(next_timeline_id(), AtomicBool::new(false)));
    let after = [Fence::new(Arc::clone(&others) as _, 1)];
    // SAFETY: a valid copy, between buffers that nothing else uses and that outlive it.
    let fence = unsafe { queue.enqueue(&Operation::copy(&src, &dst), &after, Timing::Off) }.unwrap();
    // First: a test that fails drops the buffers.
    fence.wait().unwrap();
    assert_eq!(others.reached(), 1, "not waited for");
}

/// Work of nobody, which is complete when the test says so.
struct Held {
    id: TimelineId,
    is_open: Mutex<bool>,
    opened: Condvar,
    waits: mpsc::Sender<()>,
}

impl Held {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

// SAFETY: there is no work that could touch memory.
unsafe impl Timeline for Held {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Other("nobody", 0)
    }

    fn reached(&self) -> u64 {
        u64::from(*self.is_open.lock().unwrap())
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        self.waits.send(()).unwrap();
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        Ok(())
    }

    fn wake_at(&self, point: u64, _: &Waker) -> bool {
        self.reached() >= point
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A task that waits for a buffer's work as soon as it is woken, on the thread that wakes it.
struct WaitsAtOnce(RawBuffer, mpsc::Sender<Vec<Result<()>>>);

impl Wake for WaitsAtOnce {
    fn wake(self: Arc<Self>) {
        let fences = self.0.in_flight().unwrap_or_default();
        self.1.send(fences.iter().map(Fence::wait).collect()).unwrap();
    }
}

#[test]
fn task_that_a_submission_wakes_may_wait_for_it() {
    let Some(setup) = setup() else { return };
    let (there, (waits, waited)) = (setup.allocate(MemoryKind::Device, 64), mpsc::channel());
    let held =
        Arc::new(Held { id: next_timeline_id(), is_open: Mutex::default(), opened: Condvar::new(), waits });
    let earlier = Fence::new(Arc::clone(&held) as _, 1);
    // SAFETY: there is no work.
    unsafe { Claims::acquire(&mut [(&there, Access::Write)]).unwrap().commit(&earlier) };
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        let submitter = scope.spawn(|| {
            let device = setup.backend.device(setup.device).unwrap();
            let encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            setup.backend.submit(setup.device, [encoder.finish()], &[(&there, Access::Write)]).unwrap()
        });
        // It has claimed the buffer.
        waited.recv().unwrap();
        let turns = Turns::default();
        let claimed = Claims::try_acquire(&mut [(&there, Access::Read)], &turns);
        let Err(TrySubmitError::WouldBlock(unblocked)) = claimed else { panic!("it is claimed") };
        let waker = Waker::from(Arc::new(WaitsAtOnce(there.clone(), sender)));
        let mut unblocked = pin!(unblocked);
        assert!(unblocked.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        held.open();
        let outcomes = outcomes.recv().unwrap();
        assert!(!outcomes.is_empty() && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        submitter.join().unwrap().wait().unwrap();
    });
}
