//! Work on one range runs in submission order across queues; work on other ranges does not wait for it.

use std::{
    sync::{Arc, mpsc},
    task::{Wake, Waker},
    thread,
};

use parking_lot::Mutex;
use transload_core::{Access, Backend, Fence, Operation, Pattern, StreamPriority, Timing, submit};

use crate::{allocate, backend, gate::Gate, lease, lease_at, noise};

const MIB: usize = 1 << 20;

#[test]
fn conflicting_writes_on_two_queues_keep_last() {
    let backend = backend(2, 2 * MIB);
    let (first, second) = (lease(&backend), lease(&backend));
    for bytes in [100, MIB, 5 * MIB] {
        let buffer = allocate(&backend, bytes);
        for round in 0..50_u8 {
            for (queue, value) in [(&first, round), (&second, round ^ 0xFF)] {
                let pattern = Pattern::U8(value);
                submit(&**queue, &Operation::Fill { dst: &buffer, pattern }, Timing::Off).unwrap();
            }
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == round ^ 0xFF), "round {round}");
        }
    }
}

#[test]
fn a_reader_on_another_queue_sees_what_was_written_before() {
    let backend = backend(2, usize::MAX);
    let queues =
        [lease(&backend), lease_at(&backend, StreamPriority::High), lease_at(&backend, StreamPriority::Low)];
    let chain: Vec<_> = (0..20).map(|_| allocate(&backend, 300_001)).collect();
    for round in 0..20 {
        let content = noise(round, 300_001);
        chain[0].write().unwrap().copy_from_slice(&content);
        for (index, pair) in chain.windows(2).enumerate() {
            let copy = Operation::Copy { src: &pair[0], dst: &pair[1] };
            submit(&*queues[index % 3], &copy, Timing::Off).unwrap();
        }
        assert!(*chain[19].read().unwrap() == content[..], "round {round}");
    }
}

#[test]
fn foreign_fence_wait_blocks_no_worker() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let held: Vec<_> = (0..4)
        .map(|index| {
            let (src, dst) = (allocate(&backend, 10), allocate(&backend, 10));
            // The gate's operation, which writes `src`, is in flight.
            submit(&gate, &Operation::Fill { dst: &src, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
            let queue = lease(&backend);
            let fence = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
            // After it on the same queue, though it depends on nothing.
            let later = allocate(&backend, 10);
            let fill = Operation::Fill { dst: &later, pattern: Pattern::U8(index) };
            let later = submit(&*queue, &fill, Timing::Off).unwrap();
            (queue, fence, later)
        })
        .collect();

    // The only worker is free for other work.
    let other = lease_at(&backend, StreamPriority::Low);
    let buffer = allocate(&backend, MIB);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(9) };
    submit(&*other, &fill, Timing::Off).unwrap().wait().unwrap();

    gate.wake_spuriously();
    submit(&*other, &fill, Timing::Off).unwrap().wait().unwrap();
    assert!(held.iter().all(|(_, fence, later)| !fence.is_complete() && !later.is_complete()));

    gate.open();
    for (queue, fence, later) in held {
        later.wait().unwrap();
        assert!(fence.is_known_complete());
        assert_eq!(queue.outstanding(), 0);
    }
    assert_eq!(gate.waiting(), 0);
}

#[test]
fn long_chain_of_waiting_queues_blocks_no_worker() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let queues: Vec<_> = [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low]
        .map(|priority| lease_at(&backend, priority))
        .into();
    let buffer = allocate(&backend, 64);
    submit(&gate, &Operation::Fill { dst: &buffer, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    for index in 0..3000_u32 {
        let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U32(index) };
        submit(&*queues[index as usize % 3], &fill, Timing::Off).unwrap();
    }
    gate.open();
    assert_eq!(buffer.read().unwrap()[..4], 2999_u32.to_ne_bytes());
}

/// Blocks the thread that wakes it until the test releases it.
struct Hold(Mutex<mpsc::Receiver<()>>);

impl Wake for Hold {
    fn wake(self: Arc<Self>) {
        let _let_go = self.0.lock().recv();
    }
}

/// Records that it was woken.
struct Note(StreamPriority, Arc<Mutex<Vec<StreamPriority>>>);

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(self.0);
    }
}

#[test]
fn loan_ended_after_a_future_point_hides_no_work_in_flight() {
    let (backend, gate) = (backend(1, usize::MAX), Gate::new());
    let (src, dst) = (allocate(&backend, 100), allocate(&backend, 100));
    let queue = lease(&backend);
    submit(&gate, &Operation::Fill { dst: &dst, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
    let copied = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    let never = Fence::new(Arc::clone(queue.timeline()), 1000);
    src.lend(Access::Read).unwrap().end_after(&[never]);
    let (begun, is_begun) = mpsc::channel();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            begun.send(()).unwrap();
            src.write().unwrap().fill(2);
            copied.is_known_complete()
        });
        is_begun.recv().unwrap();
        // Time enough for one that does not wait to show itself.
        (0..10_000).take_while(|_| !writer.is_finished()).for_each(|_| thread::yield_now());
        gate.open();
        assert!(writer.join().unwrap(), "it wrote what a worker reads");
    });
    assert_eq!(*dst.read().unwrap(), [0; 100]);
}

#[test]
fn urgent_work_overtakes_what_waits_for_a_worker() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let (let_go, hold) = mpsc::channel();
    let hold = Waker::from(Arc::new(Hold(Mutex::new(hold))));
    let buffer = allocate(&backend, 100);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(0) };
    let queue = lease(&backend);
    submit(&gate, &fill, Timing::Off).unwrap();
    let fence = submit(&*queue, &fill, Timing::Off).unwrap();
    assert!(!fence.timeline().wake_at(fence.point(), &hold));
    // The only worker is busy with the waker from here on.
    gate.open();
    fence.wait().unwrap();

    let order = Arc::new(Mutex::new(Vec::new()));
    let src = allocate(&backend, 2_600_000);
    let buffers: Vec<_> = (0..60).map(|_| allocate(&backend, 2_600_000)).collect();
    let queues = [StreamPriority::Low, StreamPriority::Normal, StreamPriority::High]
        .map(|priority| lease_at(&backend, priority));
    for (queue, part) in queues.iter().zip(buffers.chunks(20)) {
        for dst in part {
            let fence = submit(&**queue, &Operation::Copy { src: &src, dst }, Timing::Off).unwrap();
            let note = Note(queue.priority(), Arc::clone(&order));
            assert!(!fence.timeline().wake_at(fence.point(), &Waker::from(Arc::new(note))));
        }
    }
    let_go.send(()).unwrap();
    backend.drain().unwrap();
    let order = order.lock();
    assert_eq!(order.len(), 60);
    assert!(order.is_sorted(), "{order:?}");
}
