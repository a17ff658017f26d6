//! How writes that can fail ended: what is told to readers, and which bytes are marked.

use std::ops::Range;

use super::{
    Dependencies, Hazards,
    table::{Found, STEPS},
    uses::{Kind, Written},
};
use crate::{
    Access, Error, ErrorKind, RawBuffer, Result,
    source::{SourceList, add_sources, source_failed},
};

impl Hazards {
    /// Adds the writes that can fail to the sources of an operation, of what it reads and of what it may keep.
    pub(super) fn add_sources(
        &self,
        buffer: &RawBuffer,
        read: Found,
        kept: Found,
        sources: &mut SourceList,
    ) -> Result<()> {
        for (found, refuses) in [(read, true), (kept, false)] {
            if let Some(mark) = found.mark.filter(|_| refuses)
                && !crate::mutant!("core/refuse-damaged-source")
            {
                mark.wait()?;
            }
            found
                .writes
                .into_iter()
                .try_for_each(|write| self.add_source(buffer, write, refuses, sources))?;
        }
        Ok(())
    }

    /// Adds a write that can fail to the sources of an operation that reads, unless it has ended well.
    fn add_source(
        &self,
        reader: &RawBuffer,
        write: Written,
        refuses: bool,
        sources: &mut SourceList,
    ) -> Result<()> {
        if write.fence.is_known_done() {
            let outcome = write.fence.outcome();
            let refused = match &outcome {
                Some(Err(error)) if refuses && damages(&write, error) => Err(failure_of(&write, error)),
                _ => Ok(()),
            };
            self.settle(std::slice::from_ref(&write));
            return refused;
        }
        if !crate::mutant!("core/inherit-sources") {
            let of = (reader.id(), reader.place());
            add_sources(sources, &write.fence, of, write.range);
        }
        Ok(())
    }

    /// Finds out how writes ended. Where one failed its bytes are marked; where one succeeded it is forgotten.
    pub(super) fn settle(&self, writes: &[Written]) {
        for write in writes {
            let Some(outcome) = write.fence.outcome() else { continue };
            let failure = outcome
                .err()
                .filter(|error| damages(write, error) && !crate::mutant!("core/mark-failed-writes"));
            self.in_steps(write.range.start, |table, from, removed| {
                table.settle(&(from..write.range.end), write, failure.as_ref(), removed)
            });
        }
    }

    /// Removes the marks of a range: the bytes are as they should be, or nobody cares.
    pub(crate) fn assume_written(&self, range: &Range<usize>) {
        // What has failed unseen leaves its marks first.
        let mut found = Found::default();
        self.in_steps(range.start, |table, from, _| {
            let (rest, mut after) = (from..range.end, Dependencies::default());
            table.collect(&rest, Access::Write, None, &mut { STEPS }, &mut after, Some(&mut found))
        });
        self.settle(&found.writes);
        self.in_steps(range.start, |table, from, removed| {
            let rest = from..range.end;
            table.cut_out(&rest);
            table.prune(&rest, removed, |_, used| used.kind == Kind::Mark)
        });
    }
}

/// Returns whether bytes may be damaged. With its device they are lost, and the device says so.
fn damages(write: &Written, error: &Error) -> bool {
    error.kind() != ErrorKind::DeviceLost && write.fence.timeline().may_have_written(write.fence.point())
}

#[cold]
fn failure_of(Written { range, claim, .. }: &Written, error: &Error) -> Error {
    let Range { start, end } = range;
    let text = format!(
        "bytes {start} to {end} cannot be read: the operation that wrote them (claim {claim} of the allocation) failed"
    );
    source_failed(text, error)
}
