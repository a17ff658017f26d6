//! The task of a timeline runs on another thread while all workers are blocked.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use transload_core::{StreamPriority, next_timeline_id};
use transload_executor::yield_now;

use crate::{executor, within_limit};

#[test]
fn blocked_workers_do_not_keep_a_timelines_task() {
    within_limit(
        || "its task is not run".to_owned(),
        || {
            let executor = executor(1);
            let (begun, has_begun) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let blocked = executor.spawn(async move {
                begun.send(()).unwrap();
                let _until_dropped = released.recv();
            });
            has_begun.recv().unwrap();
            let (other, of) = (next_timeline_id(), next_timeline_id());
            assert!(!executor.run_one_of(of));
            let ran = Arc::new(AtomicUsize::new(0));
            let counted = |times: usize, weight: usize| {
                let ran = Arc::clone(&ran);
                async move {
                    for _ in 0..times {
                        ran.fetch_add(weight, Ordering::SeqCst);
                        yield_now().await;
                    }
                }
            };
            let normal = StreamPriority::Normal;
            executor.spawn_detached(normal, counted(1, 100)).unwrap();
            executor.spawn_detached_of(other, normal, counted(1, 1000)).unwrap();
            executor.spawn_detached_of(of, StreamPriority::Low, counted(2, 1)).unwrap();
            for runs in 1..=2 {
                assert!(executor.run_one_of(of));
                assert_eq!(ran.load(Ordering::SeqCst), runs);
            }
            // Its last part, which ends it.
            assert!(executor.run_one_of(of));
            assert!(!executor.run_one_of(of));
            drop(release);
            blocked.wait().unwrap();
            executor.drain().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 1102);
        },
    );
}
