//! A task whose submission waits is not starved by later transfers of the same bytes.

use std::{
    future::{Future, IntoFuture},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use transload_core::{MemoryKind, RawBuffer, TransferMethod};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock,
    gate::Gate,
    mock::{bytes, set_bytes},
    pair,
    staging::staged,
    watchdog::within,
    with,
};

const OVERTAKES: usize = 16;

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Submits staged transfers, which wait for no earlier work at their submission, until one has to wait. Returns how many did
/// not, of `most`.
fn overtake(manager: &CrossBackendTransferManager, src: &RawBuffer, dst: &RawBuffer, most: usize) -> usize {
    let is_submitted = |_: &usize| {
        let options = staged();
        let mut newcomer = pin!(manager.copy(src, dst).options(options).submit_async());
        match poll(newcomer.as_mut()) {
            Poll::Ready(transfer) => transfer.refusal().is_none(),
            Poll::Pending => false,
        }
    };
    (0..most).take_while(is_submitted).count()
}

#[test]
fn overtaken_transfer_async_is_next_after_sixteen() {
    within("a transfer that 16 others overtake", || {
        let (manager, _backend) = with(Mock::default());
        let (last, dst) = pair(&manager, 64);
        let (other, newest) = (pair(&manager, 64).0, pair(&manager, 64).0);
        // Of pinned memory, which no thread copies during the call.
        let src = manager.allocate_for(MOCK, MemoryKind::Pinned, 64).unwrap();
        set_bytes(&last, 2);
        set_bytes(&src, 2);
        set_bytes(&newest, 3);
        for near in [&src, &other] {
            manager.prepare(near.place(), dst.place(), &TransferOptions::new()).unwrap();
        }
        let (first, second) = (Gate::before(&dst), Gate::before(&other));
        let options = TransferOptions::new().only(TransferMethod::DirectCopy);
        let mut waiter = pin!(manager.copy(&src, &dst).options(options).into_future());
        assert!(poll(waiter.as_mut()).is_pending());
        assert_eq!(overtake(&manager, &other, &dst, OVERTAKES / 2), OVERTAKES / 2);
        // It tries again, and is kept by those that overtook it; they count all the same.
        first.open();
        assert!(poll(waiter.as_mut()).is_pending());
        assert_eq!(overtake(&manager, &other, &dst, 10 * OVERTAKES), OVERTAKES / 2);
        let options = staged();
        let mut newcomer = pin!(manager.copy(&newest, &dst).options(options).into_future());
        assert!(poll(newcomer.as_mut()).is_pending());
        second.open();
        pollster::block_on(waiter).unwrap();
        pollster::block_on(newcomer).unwrap();
        assert_eq!(bytes(&dst), [3; 64]);
        // Its turn is over.
        assert_eq!(overtake(&manager, &last, &dst, 2 * OVERTAKES), 2 * OVERTAKES);
        manager.drain().unwrap();
        assert_eq!(bytes(&dst), [2; 64]);
    });
}
