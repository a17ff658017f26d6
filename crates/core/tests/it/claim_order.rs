//! Work that waits for one of its buffers does not hold the others, so two operations cannot deadlock.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use transload_core::{Access, Claims, Turns};

use crate::mock::buffer;

#[test]
fn work_that_waits_for_one_buffer_holds_no_other() {
    let (older, newer) = (buffer(100), buffer(100));
    assert!(older.id() < newer.id());
    let held = Claims::acquire(&mut [(&older, Access::Write)]).unwrap();
    let (sender, receiver) = channel();
    let (first, second) = (newer.clone(), older.clone());
    let claiming = thread::spawn(move || {
        let claims = Claims::acquire(&mut [(&first, Access::Write), (&second, Access::Write)]);
        let _test_is_over = sender.send(claims.map(drop));
    });
    // The thread waits for the older buffer.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        assert!(
            Claims::try_acquire(&mut [(&newer, Access::Write)], &Turns::default()).is_ok(),
            "held while the older one was waited for"
        );
        thread::yield_now();
    }
    assert_eq!(receiver.try_recv().err(), Some(std::sync::mpsc::TryRecvError::Empty));
    drop(held);
    let claimed = receiver.recv_timeout(Duration::from_secs(60));
    assert_ne!(
        claimed.as_ref().err(),
        Some(&RecvTimeoutError::Timeout),
        "not claimed after the older was free"
    );
    claimed.unwrap().unwrap();
    claiming.join().unwrap();
}
