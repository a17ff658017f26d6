//! A large operation shared by several workers. Each takes the next piece until none is left, and yields in between.

use std::{
    future::poll_fn,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    time::Instant,
};

use parking_lot::Mutex;
use transload_core::{Result, StreamPriority, catch_panic};
use transload_executor::{Executor, yield_now};

use crate::{
    copy::{self, Partition, Stores},
    queued_op::{Outcome, QueuedOp},
};

/// An operation shared by several workers.
pub(crate) struct ParallelOp {
    op: QueuedOp,
    partition: Partition,
    stores: Stores,
    next: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    left: usize,
    outcome: Result<()>,
    waker: Option<Waker>,
}

impl ParallelOp {
    /// Runs the operation to its end. The returned handle keeps the buffers alive, as do tasks that start too late to
    /// take a piece.
    pub(crate) async fn run(
        (op, is_timed): (QueuedOp, bool),
        (partition, stores): (Partition, Stores),
        executor: &Executor,
        priority: StreamPriority,
    ) -> (Arc<Self>, Outcome) {
        let noted = catch_panic(|| copy::note_accesses(&op.operation()));
        let begun = is_timed.then(Instant::now);
        let state = Mutex::new(State { left: partition.pieces(), outcome: noted, waker: None });
        let parallel = Arc::new(Self { op, partition, stores, next: AtomicUsize::new(0), state });
        let helpers =
            (1..executor.threads().min(partition.pieces())).map(|_| Arc::clone(&parallel).take_part());
        // On an error, which the executor reports, this task does all pieces.
        let _alone = executor.spawn_all(priority, helpers);
        Arc::clone(&parallel).take_part().await;
        let result = poll_fn(|context| {
            let mut state = parallel.state.lock();
            if state.left == 0 {
                return Poll::Ready(state.outcome.clone());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        });
        let result = result.await;
        (parallel, Outcome { result, times: begun.map(|begun| (begun, Instant::now())) })
    }

    /// Takes pieces until none is left.
    async fn take_part(self: Arc<Self>) {
        while let Some(piece) = self.next_piece() {
            // SAFETY: the caller of `Queue::enqueue` promised that there is no conflicting use of the bytes until the
            // point is reached, which is after the last piece; each piece is taken once, and pieces do not overlap.
            let work = || unsafe { copy::perform_units(&self.op.operation(), piece, self.stores) };
            self.ended(catch_panic(work).flatten());
            yield_now().await;
        }
    }

    fn next_piece(&self) -> Option<Range<usize>> {
        self.partition.piece(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn ended(&self, outcome: Result<()>) {
        let mut state = self.state.lock();
        state.left -= 1;
        if state.outcome.is_ok() {
            state.outcome = outcome;
        }
        let waker = if state.left == 0 { state.waker.take() } else { None };
        drop(state);
        // This wakes the queue's task, the only one that polls.
        waker.into_iter().for_each(Waker::wake);
    }
}
