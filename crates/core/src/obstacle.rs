//! What keeps work from being submitted just now, as a future: a task waits for it where a thread would block.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{Access, Error, Fence, RawBuffer, Result};

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
    /// Some thread is between its claim and its commit.
    Claim(RawBuffer, Access),
    /// These are not over yet; each goes when it is. On the heap, so that an answer of success stays small.
    Fences(Vec<Fence>),
}

impl Obstacle {
    pub(crate) fn claim(buffer: &RawBuffer, access: Access) -> Self {
        Self { what: What::Claim(buffer.clone(), access) }
    }

    pub(crate) fn fences(fences: Vec<Fence>) -> Self {
        Self { what: What::Fences(fences) }
    }
}

impl Future for Obstacle {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.what {
            What::Claim(buffer, access) => {
                match buffer.hazards().wake_at_a_commit(&buffer.range(), *access, context.waker()) {
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
            What::Claim(buffer, access) => {
                write!(f, "Obstacle({access:?} of {buffer:?} while it is claimed)")
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
