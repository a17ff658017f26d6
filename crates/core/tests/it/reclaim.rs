//! Memory that is dropped while in use is freed after its last operation, never before.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    task::Waker,
    thread,
    time::Duration,
};

use transload_core::{
    DeviceId, Fence, HostBytes, MemoryKind, Operation, Place, Queue, RawBuffer, Reclaimer, Result,
    StreamPriority, Timeline, TimelineId, Timing, next_timeline_id, submit,
};

use crate::mock::{DEVICE, MockQueue, memory};

fn pair(reclaimer: &Arc<Reclaimer>) -> (RawBuffer, Arc<AtomicBool>) {
    memory(reclaimer, MemoryKind::Pageable, 100, true)
}

fn is(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

#[test]
fn unused_memory_is_freed_at_once_with_its_last_handle() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (buffer, freed) = pair(&reclaimer);
    let slice = buffer.slice(5..).unwrap();
    drop(buffer);
    assert!(!is(&freed));
    drop(slice);
    assert!(is(&freed) && reclaimer.is_empty());
}

#[test]
fn sweep_frees_memory_after_all_fences_without_waiting() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (reader, writer) = (MockQueue::new(), MockQueue::new());
    let ((src, src_freed), (dst, dst_freed)) = (pair(&reclaimer), pair(&reclaimer));
    writer.copy(&src, &dst).unwrap();
    reader.copy(&src, &pair(&reclaimer).0).unwrap();
    drop((src, dst));
    assert_eq!(reclaimer.len(), 3);
    // Returns although nothing has ended.
    assert_eq!(reclaimer.sweep(), 0);
    assert_eq!(reclaimer.len(), 3);

    writer.complete(1);
    assert_eq!(reclaimer.sweep(), 1);
    assert!(is(&dst_freed) && !is(&src_freed), "the other queue still reads it");
    reader.complete(1);
    assert_eq!(reclaimer.sweep(), 2);
    assert!(is(&src_freed) && reclaimer.is_empty());
}

#[test]
fn memory_of_an_operation_that_failed_is_freed_too() {
    let reclaimer = Arc::new(Reclaimer::new());
    let queue = MockQueue::new();
    let (buffer, freed) = pair(&reclaimer);
    queue.write(&buffer).unwrap();
    drop(buffer);
    queue.fail(1, "broken");
    assert_eq!(reclaimer.sweep(), 1);
    assert!(is(&freed));
}

#[test]
fn drain_waits_and_tells_the_first_error() {
    let reclaimer = Arc::new(Reclaimer::new());
    let queue = MockQueue::new();
    let pending: Vec<_> = (0..3)
        .map(|_| {
            let (buffer, freed) = pair(&reclaimer);
            queue.write(&buffer).unwrap();
            freed
        })
        .collect();
    thread::scope(|scope| {
        let drain = scope.spawn(|| {
            let outcome = reclaimer.drain();
            (outcome, queue.timeline().reached())
        });
        queue.complete(1);
        queue.fail(2, "second");
        queue.fail(3, "third");
        let (outcome, reached) = drain.join().unwrap();
        assert_eq!(reached, 3);
        assert_eq!(outcome.unwrap_err().to_string(), "second");
    });
    assert!(pending.iter().all(|freed| is(freed)) && reclaimer.is_empty());
}

#[test]
fn who_may_not_wait_for_some_work_drains_the_rest() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (stuck, queue) = (MockQueue::new(), MockQueue::new());
    let ((first, first_freed), (second, second_freed), (both, both_freed)) =
        (pair(&reclaimer), pair(&reclaimer), pair(&reclaimer));
    stuck.write(&first).unwrap();
    queue.write(&second).unwrap();
    stuck.copy(&both, &first).unwrap();
    queue.copy(&both, &second).unwrap();
    let of_stuck = stuck.timeline().id();
    drop((first, second, both));
    let allowed = |fence: &Fence| fence.timeline().id() != of_stuck;
    thread::scope(|scope| {
        let drain = scope.spawn(|| reclaimer.drain_where(allowed));
        queue.complete(1);
        queue.fail(2, "broken");
        assert_eq!(drain.join().unwrap().unwrap_err().to_string(), "broken");
    });
    assert!(is(&second_freed) && !is(&first_freed) && !is(&both_freed));
    assert_eq!(reclaimer.len(), 2);
    stuck.complete(2);
    // Of both, the other queue's work failed.
    reclaimer.drain_where(|_| false).unwrap_err();
    assert!(is(&first_freed) && is(&both_freed) && reclaimer.is_empty());
}

#[test]
fn memory_that_no_drain_waits_for_now_is_freed_by_others() {
    for only_some in [false, true] {
        let reclaimer = Arc::new(Reclaimer::new());
        let (later, soon) = (Arc::new(MockQueue::new()), Arc::new(MockQueue::new()));
        let ((first, first_freed), (last, last_freed)) = (pair(&reclaimer), pair(&reclaimer));
        later.write(&first).unwrap();
        soon.write(&last).unwrap();
        drop((first, last));
        let (freed, is_freed) = mpsc::channel();
        *later.line().on_wait.lock() = Some(Box::new({
            let (reclaimer, soon, later) = (Arc::clone(&reclaimer), Arc::clone(&soon), Arc::clone(&later));
            move || {
                soon.complete(1);
                freed.send(reclaimer.sweep()).unwrap();
                later.complete(1);
            }
        }));
        match only_some {
            true => reclaimer.drain_where(|_| true).unwrap(),
            false => reclaimer.drain().unwrap(),
        }
        assert_eq!(is_freed.recv().unwrap(), 1, "of one that is short of memory: {only_some}");
        assert!(is(&first_freed) && is(&last_freed) && reclaimer.is_empty());
    }
}

#[test]
fn orphaned_memory_is_freed_by_another_reclaimer() {
    let reclaimer = Arc::new(Reclaimer::new());
    let queue = MockQueue::new();
    let ((in_flight, orphan), (over, freed)) = (pair(&reclaimer), pair(&reclaimer));
    queue.write(&over).unwrap();
    queue.write(&in_flight).unwrap();
    drop((in_flight, over));
    queue.complete(1);
    drop(reclaimer);
    assert!(is(&freed));
    Reclaimer::new().sweep();
    assert!(!is(&orphan), "still in use");
    queue.complete(2);
    // Another test's sweep may have it in hand just now.
    while !is(&orphan) {
        Reclaimer::new().sweep();
        std::thread::yield_now();
    }
}

/// A timeline that stops each poll twice: at its start and at its end.
struct Slow {
    id: TimelineId,
    reached: AtomicU64,
    polled: Arc<Barrier>,
    is_polled: AtomicBool,
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for Slow {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::SeqCst)
    }

    fn poll(&self, _: u64) -> Result<bool> {
        // Only the sweep's; the drain may ask too.
        if !self.is_polled.swap(true, Ordering::SeqCst) {
            self.polled.wait();
            self.polled.wait();
        }
        Ok(false)
    }

    fn wait(&self, point: u64) -> Result<()> {
        self.reached.store(point, Ordering::SeqCst);
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct SlowQueue(Arc<dyn Timeline>);

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Queue for SlowQueue {
    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.0
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        Ok(Fence::new(Arc::clone(&self.0), 1))
    }

    fn outstanding(&self) -> u64 {
        1
    }
}

#[test]
fn drain_waits_for_memory_taken_by_a_sweep() {
    let polled = Arc::new(Barrier::new(2));
    let line = Slow {
        id: next_timeline_id(),
        reached: AtomicU64::new(0),
        polled: Arc::clone(&polled),
        is_polled: AtomicBool::new(false),
    };
    let queue = SlowQueue(Arc::new(line));
    let reclaimer = Arc::new(Reclaimer::new());
    let (buffer, freed) = pair(&reclaimer);
    let fill = Operation::Fill { dst: &buffer, pattern: transload_core::Pattern::U8(0) };
    submit(&queue, &fill, Timing::Off).unwrap();
    drop(buffer);
    let of_sweep = Arc::clone(&reclaimer);
    let sweep = thread::spawn(move || of_sweep.sweep());
    // The sweeping thread has taken the list and asks whether the work is over.
    polled.wait();
    assert_eq!(reclaimer.len(), 1, "still counted while it is looked at");
    let (of_drain, (drained, returned)) = (Arc::clone(&reclaimer), mpsc::channel());
    thread::spawn(move || {
        of_drain.drain().unwrap();
        let _test_is_over = drained.send(is(&freed));
    });
    let early = returned.recv_timeout(Duration::from_millis(200));
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "drain returned while a sweep had the memory");
    // Only now may the sweep put it back, which drain by now waits for.
    polled.wait();
    sweep.join().unwrap();
    let freed = returned.recv_timeout(Duration::from_secs(60));
    assert_eq!(
        freed,
        Ok(true),
        "drain was not told that the memory is back, or returned before it was freed"
    );
    assert!(reclaimer.is_empty());
}

#[test]
fn weak_handle_keeps_nothing_alive_and_upgrades_to_whole() {
    let reclaimer = Arc::new(Reclaimer::new());
    let (buffer, freed) = pair(&reclaimer);
    let slice = buffer.slice(20..30).unwrap();
    assert_eq!((slice.len(), slice.allocation_len()), (10, 100));
    let weak = slice.downgrade();
    drop(buffer);
    let whole = weak.upgrade().unwrap();
    assert_eq!((whole.id(), whole.offset(), whole.len()), (slice.id(), 0, 100));
    drop((slice, whole));
    assert!(is(&freed) && weak.upgrade().is_none());
    // What is pending free until its last operation is over cannot be had back.
    let (used, freed) = pair(&reclaimer);
    let queue = MockQueue::new();
    queue.copy(&used, &pair(&reclaimer).0).unwrap();
    let weak = used.downgrade();
    drop(used);
    assert!(weak.upgrade().is_none() && !is(&freed));
    queue.complete(1);
    reclaimer.sweep();
    assert!(is(&freed));
}

/// Memory whose destructor panics.
struct Panicking(Box<[u8]>);

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("planted");
    }
}

#[test]
fn panic_of_an_owners_destructor_frees_no_memory_in_use() {
    let reclaimer = Arc::new(Reclaimer::new());
    let [one, two] = [(); 2].map(|()| MockQueue::new());
    let (used, freed) = pair(&reclaimer);
    two.write(&used).unwrap();
    for _ in 0..2 {
        let bytes = Panicking(vec![0; 64].into_boxed_slice());
        let address = NonNull::from(&*bytes.0).cast();
        // SAFETY: the box owns the bytes, which have no other user.
        let storage = unsafe { HostBytes::new(bytes, address, 64, MemoryKind::Pageable, true) };
        let panics = RawBuffer::new(Box::new(storage), &reclaimer);
        one.write(&panics).unwrap();
    }
    drop(used);
    one.complete(2);
    assert_eq!(reclaimer.sweep(), 2);
    drop(reclaimer);
    assert!(!is(&freed), "its writer still runs");
    two.complete(1);
    // Orphans are swept by any other one.
    while !is(&freed) {
        Reclaimer::new().sweep();
    }
}
