//! What `src/submit/claim.rs` and `src/buffer/raw_buffer.rs` give the table of a buffer.

use std::ops::Range;

use transload_core::{BufferId, Place};

use crate::hazard::Ticket;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Access {
    pub(crate) fn conflicts_with(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

pub(crate) struct RawBuffer(pub(crate) transload_core::RawBuffer);

impl RawBuffer {
    pub(crate) fn id(&self) -> BufferId {
        self.0.id()
    }

    pub(crate) fn place(&self) -> Place {
        self.0.place()
    }
}

pub(crate) struct Claimed<'a> {
    pub(crate) buffer: &'a RawBuffer,
    pub(crate) range: Range<usize>,
    pub(crate) access: Access,
    pub(crate) ticket: Option<Ticket>,
}
