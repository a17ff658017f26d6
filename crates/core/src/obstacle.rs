//! What keeps work from being submitted just now, as a future: a task waits for it where a thread would block.

use std::{
    fmt,
    future::Future,
    ops::Range,
    pin::Pin,
    task::{Context, Poll},
};

use smallvec::SmallVec;

use crate::{
    Access, Error, Fence, RawBuffer, Result,
    hazard::{Before, TurnId},
};

/// Why nothing was submitted by a call that does not wait.
#[derive(Debug)]
pub enum Unsubmitted {
    /// Something is in the way that will go by itself: await it, then try again.
    Blocked(Obstacle),
    /// It will not be submitted.
    Refused(Error),
}

/// Work in flight, or another thread's claim, that submission must come after. Ready when it is worth trying again, which
/// may find another one. Holds no claim: dropping it at any time changes nothing.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Obstacle {
    what: What,
}

enum What {
    /// Some thread is between its claim and its commit, or a waiter comes first.
    Claim(Box<Claimed>),
    /// These are not over yet; each goes when it is. On the heap, so that an answer of success stays small.
    Fences(Vec<Fence>),
}

/// A range that is claimed. On the heap, as an answer of success should stay small.
struct Claimed {
    buffer: RawBuffer,
    range: Range<usize>,
    access: Access,
    /// The turn of who waits for it.
    turn: Option<TurnId>,
}

impl Obstacle {
    /// What blocks a use of a range of the buffer's allocation.
    pub(crate) fn before(buffer: &RawBuffer, range: Range<usize>, access: Access, before: Before) -> Self {
        let what = match before {
            Before::Claim => {
                What::Claim(Box::new(Claimed { buffer: buffer.clone(), range, access, turn: None }))
            }
            Before::Fences(fences) => What::Fences(fences),
        };
        Self { what }
    }

    pub(crate) fn fences(fences: Vec<Fence>) -> Self {
        Self { what: What::Fences(fences) }
    }

    /// Blocks the calling thread until it is worth trying again.
    pub(crate) fn block(&self) {
        match &self.what {
            What::Claim(claimed) => {
                claimed.buffer.hazards().sleep_until_a_commit(&claimed.range, claimed.access);
            }
            What::Fences(fences) => {
                for fence in fences {
                    // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
                    let _over = fence.wait();
                }
            }
        }
    }

    /// Returns the fences that it waits for; none where it is a claim.
    pub(crate) fn until(&self) -> &[Fence] {
        match &self.what {
            What::Claim(..) => &[],
            What::Fences(fences) => fences,
        }
    }

    /// Returns whether it has gone, asking the driver, but without waiting.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(&self.what, What::Fences(fences) if fences.iter().all(Fence::is_over))
    }
}

/// The turns of a waiter: after some overtakes later work in conflict waits for it. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Turns(SmallVec<[(RawBuffer, TurnId); 1]>);

impl Turns {
    /// Returns the turn on a buffer's allocation.
    #[inline]
    pub(crate) fn of(&self, buffer: &RawBuffer) -> Option<TurnId> {
        self.0.iter().find(|(known, _)| known.id() == buffer.id()).map(|(_, turn)| *turn)
    }

    /// Takes or keeps a turn where the obstacle is a claim.
    pub(crate) fn wait_for(&mut self, obstacle: &mut Obstacle) {
        if let What::Claim(claimed) = &mut obstacle.what {
            claimed.turn = Some(self.keep(&claimed.buffer, &claimed.range, claimed.access, &[]));
        }
    }

    /// Takes or keeps a turn on each range, of a waiter that waits for the fences.
    pub(crate) fn wait_behind(&mut self, uses: &[(&RawBuffer, Access)], until: &[Fence]) {
        for (buffer, access) in uses {
            self.keep(buffer, &buffer.range(), *access, until);
        }
    }

    /// Takes or keeps a turn of a waiter for a host view.
    pub(crate) fn wait_for_view(&mut self, buffer: &RawBuffer, access: Access, obstacle: &mut Obstacle) {
        let turn = self.keep(buffer, &buffer.range(), access, obstacle.until());
        if let What::Claim(claimed) = &mut obstacle.what {
            claimed.turn = Some(turn);
        }
    }

    fn keep(&mut self, buffer: &RawBuffer, range: &Range<usize>, access: Access, until: &[Fence]) -> TurnId {
        let known = self.of(buffer);
        let turn = buffer.hazards().keep_turn(known, range, access, until);
        if known.is_none() {
            self.0.push((buffer.clone(), turn));
        }
        turn
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        for (buffer, turn) in &self.0 {
            buffer.hazards().end_turn(*turn);
        }
    }
}

impl Future for Obstacle {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.what {
            What::Claim(claimed) => {
                let Claimed { buffer, range, access, turn } = &**claimed;
                match buffer.hazards().wake_at_a_commit(range, *access, *turn, context.waker()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }
            What::Fences(fences) => {
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

impl fmt::Debug for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Claim(claimed) => {
                let Claimed { buffer, range, access, .. } = &**claimed;
                let Range { start, end } = range;
                write!(
                    f,
                    "Obstacle({access:?} of bytes {start} to {end} of {buffer:?} while they are claimed)"
                )
            }
            What::Fences(fences) => f.debug_tuple("Obstacle").field(fences).finish(),
        }
    }
}

impl From<Obstacle> for Unsubmitted {
    fn from(obstacle: Obstacle) -> Self {
        Self::Blocked(obstacle)
    }
}

impl From<Error> for Unsubmitted {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl RawBuffer {
    /// As [`wait_idle`](Self::wait_idle) for a task: waits by wakers, under any executor, and blocks no thread.
    ///
    /// # Errors
    /// As for `wait_idle`.
    pub async fn when_idle(&self) -> Result<()> {
        let mut outcome = Ok(());
        let outstanding: Vec<Fence> = self.hazards().outstanding().into_iter().collect();
        for fence in outstanding {
            outcome = outcome.and(fence.await);
        }
        outcome
    }
}
