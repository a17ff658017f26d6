//! What keeps work from being submitted just now, as a future: a task waits for it where a thread would block.

use std::{
    fmt,
    future::Future,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use crate::{
    Access, Error, Fence, RawBuffer, Result,
    hazard::{Blocker, TurnId},
    sync::spin_lock::SpinLock,
};

/// Why nothing was submitted by a call that does not wait.
#[derive(Debug)]
pub enum TrySubmitError {
    /// Something is in the way that will go by itself: await it, then try again.
    WouldBlock(Unblocked),
    /// It will not be submitted.
    Failed(Error),
}

/// Work in flight, or another thread's claim, that submission must come after. Ready when it is worth trying again, which
/// may find another one. Holds no claim: dropping it at any time changes nothing.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Unblocked {
    cause: Cause,
}

enum Cause {
    /// Some thread is between its claim and its commit, or a waiter comes first.
    Claim(Box<ClaimedRange>),
    /// These are not over yet; each goes when it is. On the heap, so that an answer of success stays small.
    Fences(Vec<Fence>),
    /// A waiter comes first, which waits for these.
    Turn(Vec<Fence>),
}

/// A range that is claimed. On the heap, as an answer of success should stay small.
struct ClaimedRange {
    buffer: RawBuffer,
    range: Range<usize>,
    access: Access,
    /// The turn of who waits for it.
    turn: Option<TurnId>,
}

/// How long a thread lets a waiter go first that waits for work in flight. It cannot know whether that work ends before the
/// thread itself goes on.
const MAX_TURN_WAIT: Duration = Duration::from_millis(10);

impl Unblocked {
    /// What blocks a use of a range of the buffer's allocation. Who tries again with `turns` has a turn from now on.
    pub(crate) fn before(
        buffer: &RawBuffer,
        range: Range<usize>,
        access: Access,
        before: Blocker,
        turns: Option<&Turns>,
    ) -> Self {
        let until = match &before {
            Blocker::Claim => &[],
            Blocker::Fences(fences) | Blocker::Turn(fences) => fences.as_slice(),
        };
        let turn = turns.map(|turns| turns.keep(buffer, &range, access, until));
        let cause = match before {
            Blocker::Claim => {
                Cause::Claim(Box::new(ClaimedRange { buffer: buffer.clone(), range, access, turn }))
            }
            Blocker::Fences(fences) => Cause::Fences(fences),
            Blocker::Turn(fences) => Cause::Turn(fences),
        };
        Self { cause }
    }

    pub(crate) fn fences(fences: Vec<Fence>) -> Self {
        Self { cause: Cause::Fences(fences) }
    }

    /// Blocks the calling thread until it is worth trying again with these turns.
    pub(crate) fn block(&self, turns: &Turns) {
        match &self.cause {
            Cause::Claim(claimed) => {
                claimed.buffer.hazards().wait_for_commit(&claimed.range, claimed.access);
            }
            Cause::Fences(fences) => {
                for fence in fences {
                    // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
                    let _over = fence.wait();
                }
            }
            Cause::Turn(fences) => {
                if !wait_timeout(MAX_TURN_WAIT, fences) && !crate::mutant!("core/thread-goes-ahead") {
                    turns.0.lock().skips_turns = true;
                }
            }
        }
    }

    /// Returns the fences of the work that it is; none where it is a claim, or a waiter.
    pub(crate) fn until(&self) -> &[Fence] {
        match &self.cause {
            Cause::Fences(fences) => fences,
            Cause::Claim(_) | Cause::Turn(_) => &[],
        }
    }

    /// Returns whether it has gone, asking the driver, but without waiting.
    pub(crate) fn is_resolved(&self) -> bool {
        matches!(&self.cause, Cause::Fences(fences) if fences.iter().all(Fence::is_complete))
    }
}

/// Blocks the calling thread until all are complete, or for a limited time. Returns whether they are.
fn wait_timeout(limit: Duration, fences: &[Fence]) -> bool {
    struct Unparks(Thread);

    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let (begun, waker) = (Instant::now(), Waker::from(Arc::new(Unparks(thread::current()))));
    fences.iter().all(|fence| {
        while !fence.is_known_complete() && !fence.timeline().wake_at(fence.point(), &waker) {
            match limit.checked_sub(begun.elapsed()) {
                Some(rest) if !rest.is_zero() => thread::park_timeout(rest),
                _ => return false,
            }
        }
        true
    })
}

/// The turns of a caller that tries again until it is not blocked: after 16 conflicting uses have overtaken it, later ones
/// queue behind it. For [`try_submit`](crate::try_submit) and [`Claims::try_acquire`](crate::Claims::try_acquire), which take a turn
/// where they answer what blocks them. Ends when dropped; an attempt that is not made within 1 ms after it could succeed loses
/// its turn until the next one.
#[derive(Debug, Default)]
pub struct Turns(SpinLock<Taken>);

#[derive(Debug, Default)]
struct Taken {
    turns: SmallVec<[(RawBuffer, TurnId); 1]>,
    /// Whether it has waited for other waiters as long as it should.
    skips_turns: bool,
}

impl Turns {
    /// Returns the turn to ask with on a buffer's allocation.
    pub(crate) fn of(&self, buffer: &RawBuffer) -> Option<TurnId> {
        let taken = self.0.lock();
        if taken.skips_turns { Some(TurnId::FIRST) } else { taken.of(buffer) }
    }

    /// Takes or keeps a turn on each range, of a waiter that waits for the fences.
    pub(crate) fn keep_all(&self, uses: &[(&RawBuffer, Access)], until: &[Fence]) {
        for (buffer, access) in uses {
            self.keep(buffer, &buffer.range(), *access, until);
        }
    }

    fn keep(&self, buffer: &RawBuffer, range: &Range<usize>, access: Access, until: &[Fence]) -> TurnId {
        let known = self.0.lock().of(buffer);
        let turn = buffer.hazards().keep_turn(known, range, access, until);
        if known.is_none() {
            let kept = (buffer.clone(), turn);
            self.0.lock().turns.push(kept);
        }
        turn
    }
}

impl Taken {
    fn of(&self, buffer: &RawBuffer) -> Option<TurnId> {
        self.turns.iter().find(|(known, _)| known.id() == buffer.id()).map(|(_, turn)| *turn)
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        for (buffer, turn) in &self.0.get_mut().turns {
            buffer.hazards().end_turn(*turn);
        }
    }
}

impl Future for Unblocked {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.cause {
            Cause::Claim(claimed) => {
                let ClaimedRange { buffer, range, access, turn } = &**claimed;
                match buffer.hazards().wake_at_commit(range, *access, *turn, context.waker()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }
            Cause::Fences(fences) | Cause::Turn(fences) => {
                while let Some(fence) = fences.last() {
                    // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
                    let Poll::Ready(_over) = fence.poll_done(context) else { return Poll::Pending };
                    fences.pop();
                }
                Poll::Ready(())
            }
        }
    }
}

impl fmt::Debug for Unblocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Claim(claimed) => {
                let ClaimedRange { buffer, range, access, .. } = &**claimed;
                let Range { start, end } = range;
                write!(
                    f,
                    "Unblocked({access:?} of bytes {start} to {end} of {buffer:?} while they are claimed)"
                )
            }
            Cause::Fences(fences) | Cause::Turn(fences) => f.debug_tuple("Unblocked").field(fences).finish(),
        }
    }
}

impl From<Unblocked> for TrySubmitError {
    fn from(obstacle: Unblocked) -> Self {
        Self::WouldBlock(obstacle)
    }
}

impl From<Error> for TrySubmitError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl RawBuffer {
    /// As [`wait_idle`](Self::wait_idle) for a task: waits by wakers, under any executor, and blocks no thread.
    ///
    /// # Errors
    /// As for `wait_idle`.
    pub async fn wait_idle_async(&self) -> Result<()> {
        let mut outcome = Ok(());
        let outstanding: Vec<Fence> = self.hazards().outstanding().into_iter().collect();
        for fence in outstanding {
            outcome = outcome.and(fence.await);
        }
        outcome
    }
}
