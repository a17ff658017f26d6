//! A range that is lent is out of bounds for the lender, and comes back behind what the borrower left in flight.

use transload_core::{Access, ErrorKind};

use crate::mock::{MockQueue, buffer, key};

#[test]
fn what_is_lent_answers_busy_until_it_is_back() {
    let (whole, queue) = (buffer(100), MockQueue::new());
    let half = whole.slice(..50).unwrap();
    let lent = half.lend(Access::Write).unwrap();
    assert_eq!(lent.buffer().len(), 50);
    assert_eq!(whole.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(queue.write(&half).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(half.lend(Access::Read).unwrap_err().kind(), ErrorKind::Busy);
    assert!(whole.slice(50..).unwrap().try_write().is_ok(), "the other half is not lent");
    drop(lent);
    assert!(whole.try_write().is_ok());
}

#[test]
fn what_is_lent_to_be_read_can_be_read_by_everybody() {
    let whole = buffer(100);
    let lent = whole.lend(Access::Read).unwrap();
    let other = whole.lend(Access::Read).unwrap();
    assert!(whole.try_read().is_ok());
    assert_eq!(whole.try_write().unwrap_err().kind(), ErrorKind::Busy);
    drop((lent, other));
    assert!(whole.try_write().is_ok());
}

#[test]
fn nothing_is_lent_while_work_is_in_flight_on_it() {
    let (whole, queue) = (buffer(100), MockQueue::new());
    queue.write(&whole).unwrap();
    assert_eq!(whole.try_lend(Access::Read).unwrap_err().kind(), ErrorKind::Busy);
    queue.complete(1);
    assert!(whole.try_lend(Access::Write).is_ok());
}

#[test]
fn who_uses_it_next_comes_after_what_the_borrower_left_in_flight() {
    let (whole, theirs, own) = (buffer(100), MockQueue::new(), MockQueue::new());
    let mut lent = whole.lend(Access::Write).unwrap();
    let fences = [theirs.write(&buffer(1)).unwrap(), theirs.write(&buffer(1)).unwrap()];
    lent.return_behind(&fences);
    assert_eq!(whole.try_read().unwrap_err().kind(), ErrorKind::Busy, "it would have to wait");
    own.write(&whole).unwrap();
    let mut expected: Vec<_> = fences.iter().map(key).collect();
    expected.sort();
    assert_eq!(own.last_after(), expected);
    // The second time it does nothing.
    lent.return_behind(&fences);
    drop(lent);
    theirs.complete(2);
    own.complete(1);
    assert!(whole.try_write().is_ok());
}
