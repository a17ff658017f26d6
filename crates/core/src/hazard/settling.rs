//! How writes that can fail ended: what is told to readers, and which bytes are marked.

use std::ops::Range;

use super::{
    Dependencies, Hazards, Ticket, Woken,
    segments::{Removed, Use, Written},
    table::Found,
};
use crate::{
    Access, Error, ErrorKind, Fence, Result,
    claim::Claimed,
    source::{SourceList, add_sources, source_failed},
};

impl Hazards {
    /// Adds a write that can fail to the sources of an operation that reads, unless it has ended well.
    pub(super) fn add_source(
        &self,
        reader: &Claimed<'_>,
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
            let of = (reader.buffer.id(), reader.buffer.place());
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
            let (mut removed, mut rest) = (Removed::default(), Some(write.range.clone()));
            while let Some(range) = rest {
                let end = self.table.lock().settle(&range, write, failure.as_ref(), &mut removed);
                rest = end.map(|end| range.start..end);
                removed = Removed::default();
            }
        }
    }

    /// Removes the marks of a range: the bytes are as they should be, or nobody cares.
    pub(crate) fn assume_written(&self, range: &Range<usize>) {
        // What has failed unseen leaves its marks first.
        let mut rest = Some(range.clone());
        while let Some(range) = rest {
            let (mut found, mut after) = (Found::default(), Dependencies::default());
            let end =
                self.table.lock().collect(&range, Access::Write, None, &mut after, None, Some(&mut found));
            self.settle(&found.writes);
            rest = end.map(|end| range.start..end);
        }
        self.prune_within(range, Use::is_mark);
    }

    /// Removes the uses of a range that `which` chooses, and cuts them where it begins and ends.
    pub(super) fn prune_within(&self, range: &Range<usize>, which: impl Fn(&Use) -> bool) {
        let mut rest = Some(range.clone());
        while let Some(range) = rest {
            // Declared before the lock, so dropped after it.
            let mut removed = Removed::default();
            let mut table = self.table.lock();
            table.cut_out(&range);
            let end = table.prune_within(&range, &mut removed, &which);
            drop(table);
            rest = end.map(|end| range.start..end);
        }
    }

    /// Like [`commit`](Self::commit), of a write that leaves the bytes as they are: marks stay.
    pub(crate) fn commit_keeping(
        &self,
        range: &Range<usize>,
        ticket: Ticket,
        fence: &Fence,
        woken: &mut Woken,
    ) {
        self.prune_within(range, |used| !used.is_mark());
        self.add(range, ticket, fence);
        self.withdraw(range, ticket, woken);
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
