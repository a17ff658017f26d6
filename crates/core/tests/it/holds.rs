//! A hold is an open host view to everyone else, and becomes the use of what was enqueued under it.

use transload_core::{Access, ErrorKind, Hold, Holding, RawBuffer};

use crate::mock::{MockQueue, buffer};

fn held(buffer: &RawBuffer, access: Access) -> Hold {
    match buffer.try_hold(access).unwrap() {
        Holding::Held(hold) => hold,
        Holding::Blocked(blocked) => panic!("{blocked:?}"),
    }
}

#[test]
fn work_in_conflict_with_a_hold_is_busy_until_it_ends() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let reading = held(&a, Access::Read);
    drop(held(&a, Access::Read));
    drop(a.read().unwrap());
    assert_eq!(queue.copy(&b, &a).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(a.try_hold(Access::Write).unwrap_err().kind(), ErrorKind::Busy);
    queue.copy(&a, &b).unwrap();
    queue.complete(1);
    drop(reading);
    let half = a.slice(..50).unwrap();
    let writing = held(&half, Access::Write);
    drop(half);
    assert_eq!(writing.buffer().len(), 50);
    assert_eq!(queue.copy(&a, &b).unwrap_err().kind(), ErrorKind::Busy);
    queue.write(&a.slice(50..).unwrap()).unwrap();
    drop(writing);
    queue.copy(&a, &b).unwrap();
}

#[test]
fn a_hold_comes_after_work_in_flight_and_never_waits_for_it_by_itself() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    queue.copy(&b, &a).unwrap();
    let Holding::Blocked(blocked) = a.try_hold(Access::Read).unwrap() else { panic!("it is written") };
    assert_eq!(blocked.check().unwrap_err().kind(), ErrorKind::Busy);
    drop(held(&b, Access::Read));
    let Holding::Blocked(blocked) = a.try_hold(Access::Write).unwrap() else { panic!("it is written") };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| blocked.wait().unwrap());
        queue.complete(1);
        waiting.join().unwrap();
    });
    drop(held(&a, Access::Write));
}

#[test]
fn a_committed_hold_is_a_use_that_later_work_comes_after() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let fence = queue.copy(&b, &buffer(100)).unwrap();
    // SAFETY: nothing was enqueued on it; the fence stands for work that was.
    unsafe { held(&a, Access::Write).commit(&fence) };
    assert_eq!(a.try_read().unwrap_err().kind(), ErrorKind::Busy);
    queue.complete(1);
    drop(a.try_read().unwrap());
}

#[test]
fn the_count_of_writes_changes_with_each_use_that_writes_and_with_no_other() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let before = (a.writes(), b.writes());
    queue.copy(&a, &b).unwrap();
    queue.complete(1);
    drop(a.read().unwrap());
    drop(held(&a, Access::Read));
    assert_eq!((a.writes(), b.writes()), (before.0, before.1 + 1));
    drop(a.write().unwrap());
    drop(held(&a.slice(3..4).unwrap(), Access::Write));
    assert_eq!(a.writes(), before.0 + 2);
}
