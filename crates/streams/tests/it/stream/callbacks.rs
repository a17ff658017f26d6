//! Callbacks run at completion on the library's thread, in order, whatever happens to handles, other callbacks and the
//! process.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use transload_core::{ErrorKind, MemoryKind, Pattern};
use transload_memory::CudaMemoryManager;
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

/// Longer than anything here takes: a callback that never runs fails its test.
const MINUTE: Duration = Duration::from_secs(60);
const CHILD: &str = "TRANSLOAD_TEST_CALLBACK_CHILD";

fn told<T>(receiver: &Receiver<T>) -> T {
    match receiver.recv_timeout(MINUTE) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("the callback did not run within a minute"),
        Err(RecvTimeoutError::Disconnected) => panic!("the callback was dropped without having run"),
    }
}

#[test]
fn callback_runs_after_earlier_work_without_a_waiter() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(1 << 20, 1);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(1 << 20), setup.pinned(&vec![0; 1 << 20]));
    let (sender, receiver) = mpsc::channel();
    drop(stream.copy_from_host_async(&host, &there));
    drop(stream.copy_to_host_async(&there, &back));
    let seen = back.clone();
    stream
        .add_callback(move |outcome| {
            // Readable without a wait: the copy is complete.
            let whole = seen.try_read().is_ok_and(|view| *view == content[..]);
            drop(seen);
            sender.send((outcome, whole, thread::current().name().map(str::to_owned))).unwrap();
        })
        .unwrap();
    let (outcome, whole, name) = told(&receiver);
    outcome.unwrap();
    assert!(whole, "the bytes are in place when the callback runs");
    assert_eq!(
        name.as_deref(),
        Some("transload-callbacks"),
        "a thread of ours, not the driver's and not the reactor"
    );
    drop((host, there, back, stream));
    setup.finish();
}

#[test]
fn callbacks_run_in_order_before_synchronize_returns() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(100_000);
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..50 {
        drop(stream.memset_async(&there, Pattern::U8(n)));
        let order = Arc::clone(&order);
        stream.add_callback(move |outcome| order.lock().unwrap().push((n, outcome.is_ok()))).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(*order.lock().unwrap(), (0..50).map(|n| (n, true)).collect::<Vec<_>>());
    assert_eq!(stream.metrics().callbacks_run, 50);
}

#[test]
fn callback_runs_after_its_streams_last_handle_is_dropped() {
    let setup = Setup::new();
    let there = setup.device(1 << 20);
    let (sender, receiver) = mpsc::channel();
    {
        let stream = CudaStream::new(&setup.device).unwrap();
        drop(stream.memset_async(&there, Pattern::U8(1)));
        stream.add_callback(move |outcome| sender.send(outcome).unwrap()).unwrap();
    }
    told(&receiver).unwrap();
    drop(there);
}

#[test]
fn panic_ends_only_its_callback_and_is_recorded() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (sender, receiver) = mpsc::channel();
    assert_eq!(stream.last_callback_panic(), None);
    stream.add_callback(|_| panic!("planned: {}", 7)).unwrap();
    stream.add_callback(move |outcome| sender.send(outcome).unwrap()).unwrap();
    told(&receiver).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(stream.last_callback_panic().as_deref(), Some("planned: 7"));
    let metrics = stream.metrics();
    assert_eq!((metrics.callbacks_run, metrics.callbacks_panicked), (2, 1));
}

#[test]
fn callback_may_use_the_driver_and_its_stream() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (there, back) = (setup.device(64), setup.pinned(&[0; 64]));
    let (sender, receiver) = mpsc::channel();
    let (inner, device) = (stream.clone(), setup.device.clone());
    let (to, from) = (back.clone(), there.clone());
    stream
        .add_callback(move |_| {
            let memory = CudaMemoryManager::new(&device).unwrap();
            drop(memory.allocate(MemoryKind::Device, 64).unwrap());
            drop(inner.memset_async(&from, Pattern::U8(9)));
            drop(inner.copy_to_host_async(&from, &to));
            // Does not wait for callbacks on this thread, which would wait for itself.
            inner.synchronize().unwrap();
            let sender: Sender<_> = sender;
            inner.add_callback(move |outcome| sender.send(outcome).unwrap()).unwrap();
        })
        .unwrap();
    told(&receiver).unwrap();
    assert_eq!(*back.read().unwrap(), [9; 64]);
}

#[test]
fn a_slow_callback_delays_no_task_that_awaits_a_transfer() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&vec![1; 1 << 20]), setup.device(1 << 20));
    let (release, held) = mpsc::channel::<()>();
    let (begun, running) = mpsc::channel();
    stream
        .add_callback(move |_| {
            begun.send(()).unwrap();
            let _released = held.recv_timeout(MINUTE);
        })
        .unwrap();
    told(&running);
    // The callback thread is busy until `release`; the reactor is not.
    for _ in 0..5 {
        pollster::block_on(stream.copy_from_host_async(&host, &there)).unwrap();
    }
    release.send(()).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn callbacks_of_many_threads_and_streams_all_run_once() {
    let setup = Setup::new();
    let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..6_usize {
            let (setup, stream, sender) = (&setup, &streams[thread % 3], sender.clone());
            scope.spawn(move || {
                let there = setup.device(64);
                for n in 0..40_usize {
                    drop(stream.memset_async(&there, Pattern::U8(n as u8)));
                    let sender = sender.clone();
                    stream.add_callback(move |_| sender.send((thread, n)).unwrap()).unwrap();
                }
            });
        }
    });
    drop(sender);
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    let mut next = [0; 6];
    for (thread, n) in receiver.try_iter() {
        assert_eq!(next[thread], n, "each thread's callbacks in its order");
        next[thread] += 1;
    }
    assert_eq!(next, [40; 6]);
    drop(streams);
    setup.finish();
}

#[test]
fn process_exits_cleanly_while_callbacks_wait_and_run() {
    if std::env::var_os(CHILD).is_some() {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let there = setup.device(8 << 20);
        let (begun, running) = mpsc::channel();
        stream
            .add_callback(move |_| {
                begun.send(()).unwrap();
                thread::park();
            })
            .unwrap();
        for _ in 0..10 {
            drop(stream.memset_async(&there, Pattern::U8(1)));
            stream.add_callback(|_| ()).unwrap();
        }
        told(&running);
        std::process::exit(0);
    }
    let mut child = crate::support::programs::this_program()
        .args(["--exact", "callbacks::process_exits_cleanly_while_callbacks_wait_and_run", "--nocapture"])
        .env(CHILD, "1")
        .spawn()
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    let id = child.id();
    let waiting = thread::spawn(move || sender.send(child.wait()));
    match receiver.recv_timeout(MINUTE) {
        Ok(status) => assert!(status.unwrap().success(), "the child ends by itself, without a crash"),
        Err(_) => panic!("the child {id} hangs"),
    }
    waiting.join().unwrap().unwrap();
}

#[test]
fn callback_refused_on_a_per_thread_stream_never_runs() {
    let setup = Setup::new();
    let stream = CudaStream::per_thread_default(&setup.device).unwrap();
    let (sender, receiver) = mpsc::channel::<()>();
    let refused = thread::scope(|scope| {
        scope.spawn(|| stream.add_callback(move |_| sender.send(()).unwrap())).join().unwrap()
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(receiver.recv().is_err(), "dropped, not called");
}
