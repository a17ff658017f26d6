//! A borrowed slice stays borrowed until no work uses it.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use transload_core::{borrow, catch_panic};

use crate::mock::{MockQueue, buffer};

#[test]
fn slice_left_by_a_panic_is_borrowed_until_its_copy_ends() {
    let (queue, dst, bytes) = (MockQueue::new(), buffer(100), [1_u8; 100]);
    let is_over = AtomicBool::new(false);
    let (submitted, is_submitted) = mpsc::channel();
    thread::scope(|scope| {
        let borrowing = scope.spawn(|| {
            catch_panic(|| {
                // SAFETY: the value is dropped here and never cloned.
                let source = unsafe { borrow(&bytes) };
                queue.copy(&source, &dst).unwrap();
                submitted.send(()).unwrap();
                panic!("planted panic");
            })
            .unwrap_err();
            is_over.load(Ordering::SeqCst)
        });
        is_submitted.recv().unwrap();
        // Time enough for a drop that does not wait to show itself.
        (0..10_000).take_while(|_| !borrowing.is_finished()).for_each(|_| thread::yield_now());
        is_over.store(true, Ordering::SeqCst);
        queue.complete(1);
        assert!(borrowing.join().unwrap());
    });
}
