//! What is asked of the table of a buffer, and what it answers.

use std::{ops::Range, sync::Arc};

use super::{dependencies::Dependencies, table::Ticket, turns::TurnId};
use crate::{Fence, RawBuffer, Timeline, queue::source::SourceList};

/// What an operation does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads; other readers may run concurrently.
    Read,
    /// It writes or migrates: no other user of the range meanwhile.
    Write,
}

impl Access {
    pub(crate) fn conflicts_with(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write && !crate::mutant!("core/reads-conflict-with-writes")
    }
}

/// A range of a buffer, and its claim once that is made. Uses that touch or overlap are merged.
pub(crate) struct Claimed<'a> {
    pub(crate) buffer: &'a RawBuffer,
    pub(crate) range: Range<usize>,
    pub(crate) access: Access,
    pub(crate) ticket: Option<Ticket>,
}

/// What to claim ranges for.
pub(crate) struct ClaimRequest<'a> {
    /// The timeline that the work will be enqueued on, if known.
    pub(crate) own: Option<&'a Arc<dyn Timeline>>,
    pub(crate) turn: Option<TurnId>,
    /// Whether bytes claimed for writing may also be read, or be left unchanged.
    pub(crate) inherits: bool,
}

/// The earlier work that claims found.
#[derive(Debug, Default)]
pub(crate) struct EarlierWork {
    /// Fences that the work must wait for.
    pub(crate) after: Dependencies,
    /// Writes of the bytes to be read that can fail.
    pub(crate) sources: SourceList,
}

/// What blocks a claim or a view.
#[derive(Debug)]
pub(crate) enum Blocker {
    /// Another thread's claim, or a waiter that goes first.
    Claim,
    /// Work in flight.
    Fences(Vec<Fence>),
    /// A waiter that goes first and waits for these fences.
    Turn(Vec<Fence>),
}

/// The result of an attempt to claim or open ranges.
pub(crate) enum Attempt<T> {
    Held(T),
    Blocked(Blocker),
}
