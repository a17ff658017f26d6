//! Several threads copy the parts of a staged upload; the one that has the chunk makes the driver's calls.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, ThreadId},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    DeviceId, ErrorKind, MemoryKind, StagingHints, StreamPriority, host_access::HostAccess,
};
use transload_transfer::{CrossBackendTransferManager, StagingTuning, TransferOptions};

use crate::{
    MOCK, Mock, hook, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::{stage, staged},
    watchdog::within,
    with,
};

const MIB: usize = 1 << 20;
/// Longer than what has not happened by then takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn upload_is_copied_by_several_threads_in_few_calls() {
    if thread::available_parallelism().map_or(1, usize::from) == 1 {
        println!("skipped: there is one processor, so one thread copies");
        return;
    }
    within("uploads by tasks alone", || {
        // One for each quarter of what fits a staging buffer, or for each MiB.
        for (length, calls) in [(2 * MIB + MIB / 2, 4), (3 * MIB, 4), (9 * MIB + 5, 10)] {
            let (manager, backend) = with(Mock::default());
            let (src, dst) = pair(&manager, length);
            let threads = Arc::new((Mutex::new(HashSet::new()), Condvar::new()));
            let watch = hook::watch(&src, {
                let threads = Arc::clone(&threads);
                move |_| {
                    let mut seen = threads.0.lock();
                    if !seen.insert(thread::current().id()) {
                        return;
                    }
                    threads.1.notify_all();
                    // The first one waits for another.
                    threads.1.wait_while_for(&mut seen, |seen| seen.len() < 2, LONG);
                }
            });
            pollster::block_on(stage(&manager, &src, &dst)).unwrap();
            drop(watch);
            assert!(threads.0.lock().len() > 1, "one thread copied {length} bytes");
            let made = backend.enqueued();
            assert!((1..=calls).contains(&made), "{made} calls for {length} bytes");
            assert!(bytes(&dst) == vec![1; length]);
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

#[test]
fn upload_into_the_caches_calls_the_driver_for_each_staging_buffer() {
    within("uploads into the caches", || {
        let (manager, backend) = with(Mock::default());
        let mut tuning = StagingTuning::default();
        (tuning.upload_cached_from, tuning.upload_segment) = (4 * MIB as u64, MIB as u64);
        manager.set_staging_tuning(MOCK, tuning).unwrap();
        let (src, dst) = pair(&manager, 9 * MIB + 5);
        stage(&manager, &src, &dst).wait().unwrap();
        assert_eq!(backend.enqueued(), 3);
        assert!(bytes(&dst) == vec![1; 9 * MIB + 5]);
    });
}

#[test]
fn long_segments_of_an_upload_grow_and_shrink() {
    within("uploads by long segments", || {
        for (segment, calls) in [(1, 8), (2, 8), (4, 7)] {
            // The task that has a chunk copies all its parts, and looks after each.
            let executor = transload_executor::Executor::with_threads(1).unwrap();
            let manager = CrossBackendTransferManager::builder().executor(&executor).build();
            let backend = Mock::default().build();
            manager.register_backend(Arc::clone(&backend) as _).unwrap();
            let mut tuning = StagingTuning::default();
            tuning.upload_segment = segment * MIB as u64;
            manager.set_staging_tuning(MOCK, tuning).unwrap();
            let (src, dst) = pair(&manager, 8 * MIB);
            pollster::block_on(stage(&manager, &src, &dst)).unwrap();
            assert_eq!(backend.enqueued(), calls, "by {segment} MiB");
            assert!(bytes(&dst) == vec![1; 8 * MIB]);
        }
    });
}

/// Of a download in parts, and of the last chunk of one by chunks.
#[test]
fn long_segments_of_a_download_grow_and_shrink() {
    within("downloads by long segments", || {
        for (segment, length, calls) in [(1, 8, 8), (2, 8, 8), (4, 8, 7), (1, 36, 9), (2, 36, 12)] {
            let (manager, backend) = with(Mock::default());
            let mut tuning = StagingTuning::default();
            tuning.download_segment = segment * MIB as u64;
            manager.set_staging_tuning(MOCK, tuning).unwrap();
            let (dst, src) = pair(&manager, length * MIB);
            set_bytes(&src, 2);
            stage(&manager, &src, &dst).wait().unwrap();
            assert_eq!(backend.enqueued(), calls, "{length} MiB by {segment}");
            assert!(bytes(&dst) == vec![2; length * MIB]);
        }
    });
}

#[test]
fn chunks_of_a_download_are_copied_by_several_threads_and_the_last_ones_of_a_long_one() {
    if thread::available_parallelism().map_or(1, usize::from) == 1 {
        println!("skipped: there is one processor, so one thread copies");
        return;
    }
    within("downloads in parts", || {
        // A chunk without its first byte, with which a copy by one thread begins.
        for (length, chunk) in [(9 * MIB, 1..4 * MIB), (33 * MIB, 32 * MIB + 1..33 * MIB)] {
            let (manager, _backend) = with(Mock::default());
            let (dst, src) = pair(&manager, length);
            manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
            set_bytes(&src, 2);
            let threads = Arc::new((Mutex::new(HashSet::new()), Condvar::new()));
            let watch = hook::watch_for(HostAccess::Write, &dst.slice(chunk).unwrap(), {
                let threads = Arc::clone(&threads);
                move |_| {
                    let mut seen = threads.0.lock();
                    seen.insert(thread::current().id());
                    threads.1.notify_all();
                    threads.1.wait_while_for(&mut seen, |seen| seen.len() < 2, LONG);
                }
            });
            pollster::block_on(stage(&manager, &src, &dst)).unwrap();
            drop(watch);
            assert!(threads.0.lock().len() > 1, "one thread copied a chunk of {length} bytes");
            assert!(bytes(&dst) == vec![2; length]);
        }
    });
}

/// Each way by parts of one staging buffer, and by chunks.
#[test]
fn copies_of_a_transfer_go_to_all_reserved_queues_and_wait_for_none() {
    within("transfers by two queues", || {
        for length in [3 * MIB, 21 * MIB + 5] {
            let mut staging = StagingHints::default();
            staging.queues = 2;
            let (manager, backend) = with(Mock { staging, ..Mock::default() });
            let (src, dst) = pair(&manager, length);
            let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, length).unwrap();
            for (src, dst) in [(&src, &dst), (&dst, &back)] {
                backend.shared.used.lock().clear();
                manager.copy(src, dst).options(staged()).wait().unwrap();
                let used = std::mem::take(&mut *backend.shared.used.lock());
                let queues: HashSet<_> = used.iter().collect();
                let of_first = used.iter().filter(|queue| **queue == used[0]).count();
                // A thread that is held up finds several segments of an upload copied.
                assert_eq!(queues.len(), used.len().min(2), "{used:?}");
                assert!(of_first.abs_diff(used.len() - of_first) <= 1, "{used:?}");
            }
            assert!(bytes(&back) == vec![1; length]);
            assert_eq!(backend.shared.after_others.load(Ordering::SeqCst), 0);
            drop((src, dst, back));
            assert!(is_at_rest(&manager));
        }
    });
}

#[derive(Default)]
struct State {
    /// Threads in the order of their first parts.
    order: Vec<ThreadId>,
    is_held: bool,
    is_released: bool,
}

#[derive(Default)]
struct Threads {
    state: Mutex<State>,
    changed: Condvar,
}

impl Threads {
    /// Holds the first thread until the second one is held, and the second one from `from` on until it is released.
    fn read(&self, from: usize, offset: usize) {
        let mine = thread::current().id();
        let mut state = self.state.lock();
        if !state.order.contains(&mine) {
            state.order.push(mine);
        }
        if state.order.first() == Some(&mine) {
            self.changed.notify_all();
            self.changed.wait_while_for(&mut state, |state| !state.is_held, LONG);
        } else if offset >= from {
            state.is_held = true;
            self.changed.notify_all();
            self.changed.wait_while_for(&mut state, |state| !state.is_released, 4 * LONG);
        }
    }

    fn wait_until(&self, is_met: impl Fn(&State) -> bool) {
        self.changed.wait_while(&mut self.state.lock(), |state| !is_met(state));
    }
}

#[test]
fn thread_within_a_part_holds_up_the_chunk_but_no_worker() {
    within("an upload of which a thread stands still within a part", || {
        for refused in [false, true] {
            let executor = transload_executor::Executor::with_threads(1).unwrap();
            let manager = Arc::new(CrossBackendTransferManager::builder().executor(&executor).build());
            let backend = Mock::default().build();
            manager.register_backend(Arc::clone(&backend) as _).unwrap();
            let (src, dst) = pair(&manager, 2 * MIB);
            // Makes the staging buffer.
            stage(&manager, &src, &dst).wait().unwrap();
            set_bytes(&src, 2);
            if refused {
                backend.refuse_next(ErrorKind::Device);
            }
            let threads = Arc::new(Threads::default());
            let watch = hook::watch(&src, {
                let threads = Arc::clone(&threads);
                // When the first call is due, the thread is within a part after its bytes.
                move |offset| threads.read(MIB, offset)
            });
            let transfer = stage(&manager, &src, &dst);
            let fence = transfer.fence().unwrap().clone();
            threads.wait_until(|state| !state.order.is_empty());
            // The worker has the chunk; this one takes parts of it.
            let waiter = thread::spawn(move || transfer.wait().map(drop));
            let (tell, told) = mpsc::channel();
            threads.wait_until(|state| state.is_held);
            let low = executor.spawn_at(StreamPriority::Low, async move { tell.send(()) });
            let is_run = told.recv_timeout(LONG);
            let is_complete = fence.is_known_complete();
            threads.state.lock().is_released = true;
            threads.changed.notify_all();
            assert!(is_run.is_ok(), "a task that waits for a part keeps the worker");
            assert!(!is_complete, "the transfer ended while a thread used its staging buffer");
            low.wait().unwrap().unwrap();
            let outcome = waiter.join().unwrap();
            drop(watch);
            assert_eq!(
                outcome.map_err(|error| error.kind()),
                if refused { Err(ErrorKind::Device) } else { Ok(()) }
            );
            stage(&manager, &src, &dst).wait().unwrap();
            assert!(bytes(&dst) == vec![2; 2 * MIB]);
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

#[test]
fn panic_within_a_part_fails_the_transfer() {
    within("uploads of which a thread panics within a part", || {
        for (nth, is_awaited) in [(0, true), (0, false), (1, true), (2, false), (20, true), (70, false)] {
            let (manager, backend) = with(Mock::default());
            let (src, dst) = pair(&manager, 9 * MIB + 5);
            let read = AtomicUsize::new(0);
            let watch = hook::watch(&src, move |_| {
                assert!(read.fetch_add(1, Ordering::SeqCst) != nth, "planted panic of an access");
            });
            let transfer = stage(&manager, &src, &dst);
            let outcome = if is_awaited { pollster::block_on(transfer) } else { transfer.wait() };
            drop(watch);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Interrupted);
            stage(&manager, &src, &dst).wait().unwrap();
            assert!(bytes(&dst) == vec![1; 9 * MIB + 5]);
            drop((src, dst));
            assert!(is_at_rest(&manager));
            assert_eq!(backend.freed_in_use(), 0);
        }
    });
}

#[test]
fn late_helper_keeps_neither_queue_nor_memory() {
    within("an upload that ends before its helpers run", || {
        let executor = transload_executor::Executor::with_threads(1).unwrap();
        let manager = CrossBackendTransferManager::builder().executor(&executor).build();
        let backend = Mock::default().build();
        manager.register_backend(Arc::clone(&backend) as _).unwrap();
        // So that the task which has the chunk ends the transfer at once.
        backend.perform_at_once();
        let (src, dst) = pair(&manager, 2 * MIB);
        let options = staged().priority(StreamPriority::Low);
        let copy = || manager.copy(&src, &dst).options(options).submit();
        // Makes the staging buffer.
        copy().wait().unwrap();
        let held = manager.resource_counts()[0].1.allocations;
        let (begun, is_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        // The worker's, while it has the chunk: more urgent than the helpers, which are queued by then.
        let stuck = Arc::new(Mutex::new(Some((executor.clone(), begun, released))));
        let watch = hook::watch(&src, move |_| {
            if let Some((executor, begun, released)) = stuck.lock().take() {
                drop(executor.spawn(async move {
                    begun.send(()).unwrap();
                    let _released = released.recv();
                }));
            }
        });
        let fence = copy().fence().unwrap().clone();
        is_begun.recv().unwrap();
        drop(watch);
        assert!(fence.is_complete());
        drop((fence, src, dst));
        let counts = manager.resource_counts()[0].1;
        assert_eq!((counts.leases, counts.allocations), (0, held - 2));
        release.send(()).unwrap();
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn urgent_upload_waits_for_one_chunk_of_others() {
    within("an urgent upload beside a large one", || {
        for awaited in [true, false] {
            let executor = transload_executor::Executor::with_threads(1).unwrap();
            let manager = CrossBackendTransferManager::builder().executor(&executor).build();
            let backend = Mock::default().build();
            manager.register_backend(Arc::clone(&backend) as _).unwrap();
            // So that only its yields interrupt a task.
            backend.perform_at_once();
            let (large, small) = (pair(&manager, 64 * MIB), pair(&manager, 2 * MIB));
            let submit = |(src, dst): &(_, _), priority| {
                manager.copy(src, dst).options(staged().priority(priority)).submit()
            };
            // Makes staging buffers.
            submit(&large, StreamPriority::Low).wait().unwrap();
            let (begun, is_begun) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let (order, first) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(Some((begun, released))));
            let note = |is_urgent| {
                let order = Arc::clone(&order);
                move || order.lock().push(is_urgent)
            };
            let (note_large, note_small) = (note(false), note(true));
            let watches = [
                hook::watch(&large.0, move |_| {
                    if let Some((begun, released)) = first.lock().take() {
                        begun.send(()).unwrap();
                        released.recv().unwrap();
                    }
                    note_large();
                }),
                hook::watch(&small.0, move |_| note_small()),
            ];
            let low = submit(&large, StreamPriority::Low);
            is_begun.recv().unwrap();
            let high = submit(&small, StreamPriority::High);
            release.send(()).unwrap();
            let outcome = if awaited { pollster::block_on(high) } else { high.wait() };
            outcome.unwrap();
            low.wait().unwrap();
            drop(watches);
            let order = order.lock();
            let before = order.iter().position(|is_urgent| *is_urgent).unwrap();
            // A chunk is 4 MiB, and no part is shorter than 64 KiB.
            assert!(before <= 64, "{before} of {} parts first", order.len());
        }
    });
}
