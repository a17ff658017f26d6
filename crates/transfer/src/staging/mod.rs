//! Staging: a job is cut into chunks that a crew of threads moves through a ring of pinned slots.

mod chunks;
mod crew;
mod end;
mod job;
mod slots;
mod stream_copy;

pub(crate) use chunks::chunk_for;
pub(crate) use crew::{Crew, Hire, usual_workers};
pub(crate) use end::End;
pub(crate) use job::{Job, Task};
pub(crate) use slots::{SLOT, Slots};
