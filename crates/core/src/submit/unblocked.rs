//! The future that a task awaits if work cannot be submitted without blocking, and turns, which prevent
//! starvation.

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

/// Why a call that does not wait submitted nothing.
#[derive(Debug)]
pub enum TrySubmitError {
    /// Blocked by other work or another thread: await it, then try again.
    WouldBlock(Unblocked),
    /// Submission failed; retrying is of no use unless the error says so.
    Failed(Error),
}

/// Completes when submitting is worth retrying. The retry may be blocked again, by other work. Holds no
/// claim, so it may be dropped at any time.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Unblocked {
    cause: Cause,
}

enum Cause {
    /// Another thread is between claim and commit, or a waiter goes first.
    Claim(Box<ClaimedRange>),
    /// Fences to wait for; each is removed when it is complete. A `Vec`, to keep results small.
    Fences(Vec<Fence>),
    /// A waiter goes first, which waits for these fences.
    Turn(Vec<Fence>),
}

/// A claimed range. Boxed, to keep results small.
struct ClaimedRange {
    buffer: RawBuffer,
    range: Range<usize>,
    access: Access,
    /// The turn of the waiting caller.
    turn: Option<TurnId>,
}

/// How long a thread lets another waiter go first if that one waits for work in flight. That work may depend
/// on what this thread does next.
const MAX_TURN_WAIT: Duration = Duration::from_millis(10);

impl Unblocked {
    /// Creates it for a blocked use of a range of the buffer's allocation. With `turns`, the caller has a
    /// turn from now on.
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

    /// Blocks the calling thread until a retry with these turns is worthwhile.
    pub(crate) fn block(&self, turns: &Turns) {
        match &self.cause {
            Cause::Claim(claimed) => {
                claimed.buffer.hazards().wait_for_commit(&claimed.range, claimed.access);
            }
            Cause::Fences(fences) => {
                for fence in fences {
                    // The failed transfer reports its error itself; either way its work is complete.
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

    /// Returns the fences to wait for; none if a claim or a waiter blocks.
    pub(crate) fn until(&self) -> &[Fence] {
        match &self.cause {
            Cause::Fences(fences) => fences,
            Cause::Claim(_) | Cause::Turn(_) => &[],
        }
    }

    /// Queries the driver whether the use is unblocked, without waiting.
    pub(crate) fn is_resolved(&self) -> bool {
        matches!(&self.cause, Cause::Fences(fences) if fences.iter().all(Fence::is_complete))
    }
}

/// Blocks the calling thread until all fences are complete, or until the limit. Returns whether all are
/// complete.
fn wait_timeout(limit: Duration, fences: &[Fence]) -> bool {
    struct Unparks(Thread);

    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let (begun, waker) = (Instant::now(), Waker::from(Arc::new(Unparks(thread::current()))));
    fences.iter().all(|fence| {
        while !fence.is_known_complete() && !fence.wake_at(&waker) {
            match limit.checked_sub(begun.elapsed()) {
                Some(rest) if !rest.is_zero() => thread::park_timeout(rest),
                _ => return false,
            }
        }
        true
    })
}

/// The turns of a caller that retries until it is not blocked: after 16 conflicting uses have overtaken it,
/// later ones queue behind it. Pass the same value to each attempt of [`try_submit`](crate::try_submit) or
/// [`Claims::try_acquire`](crate::Claims::try_acquire); a blocked attempt takes a turn. A caller that does
/// not retry within 1 ms after it could succeed loses its turn until its next attempt. Dropping this ends its
/// turns.
#[derive(Debug, Default)]
pub struct Turns(SpinLock<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// Sorted by allocation.
    turns: SmallVec<[(RawBuffer, TurnId); 1]>,
    /// Whether the caller has waited for other waiters long enough.
    skips_turns: bool,
}

impl Turns {
    /// Returns the turn to use for a buffer's allocation.
    pub(crate) fn of(&self, buffer: &RawBuffer) -> Option<TurnId> {
        let taken = self.0.lock();
        if taken.skips_turns { Some(TurnId::FIRST) } else { taken.of(buffer) }
    }

    /// Takes or keeps a turn on the first range of each allocation, while waiting for the fences. The uses are
    /// sorted by allocation.
    pub(crate) fn keep_all(&self, uses: &[(&RawBuffer, Access)], until: &[Fence]) {
        for group in uses.chunk_by(|(one, _), (other, _)| one.id() == other.id()) {
            if let Some((buffer, access)) = group.first() {
                self.keep(buffer, &buffer.range(), *access, until);
            }
        }
    }

    fn keep(&self, buffer: &RawBuffer, range: &Range<usize>, access: Access, until: &[Fence]) -> TurnId {
        let known = self.0.lock().of(buffer);
        let turn = buffer.hazards().keep_turn(known, range, access, until);
        if known.is_none() {
            let kept = (buffer.clone(), turn);
            let turns = &mut self.0.lock().turns;
            let at = turns.partition_point(|(known, _)| known.id() < buffer.id());
            turns.insert(at, kept);
        }
        turn
    }
}

impl Taken {
    fn of(&self, buffer: &RawBuffer) -> Option<TurnId> {
        let at = self.turns.binary_search_by_key(&buffer.id(), |(known, _)| known.id()).ok()?;
        self.turns.get(at).map(|(_, turn)| *turn)
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
                    // The failed transfer reports its error itself; either way its work is complete.
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
    /// Like [`wait_idle`](Self::wait_idle), but for tasks: waits by wakers, under any executor, and blocks no
    /// thread.
    ///
    /// # Errors
    /// Like `wait_idle`.
    pub async fn wait_idle_async(&self) -> Result<()> {
        let mut outcome = Ok(());
        let outstanding: Vec<Fence> = self.hazards().outstanding().into_iter().collect();
        for fence in outstanding {
            outcome = outcome.and(fence.await);
        }
        outcome
    }
}
