//! How fallible writes ended: which errors readers get, and which bytes are marked as damaged.

use std::ops::Range;

use super::{
    Dependencies, Hazards,
    collect::{FoundWrites, Scan},
    table::{STEPS_PER_LOCK, WriteOutcome},
    uses::{FallibleWrite, FallibleWrites, UseKind},
};
use crate::{
    Access, Error, ErrorKind, RawBuffer, Result,
    queue::source::{SourceList, source_failed},
};

impl Hazards {
    /// Adds fallible writes to the sources of an operation: those of bytes that it reads, and of bytes that
    /// it may leave unchanged.
    pub(super) fn add_sources(
        &self,
        buffer: &RawBuffer,
        read: FoundWrites,
        kept: FoundWrites,
        sources: &mut SourceList,
    ) -> Result<()> {
        for (mut found, refuses) in [(read, true), (kept, false)] {
            while let Some(write) = found.writes.pop() {
                if write.fence.is_known_complete() {
                    self.record_outcomes(std::slice::from_ref(&write));
                    if let Some(Err(error)) = write.fence.outcome() {
                        if refuses && damages(&write, &error) {
                            return Err(failure_of(&write, &error));
                        }
                        // The uses that the failed write covered count again.
                        self.find(&write.range, &mut found);
                    }
                } else if !crate::mutant!("core/inherit-sources") {
                    sources.add(&write.fence, (buffer.id(), buffer.place()), write.range);
                }
            }
            if let Some(mark) = found.mark.filter(|_| refuses)
                && !crate::mutant!("core/refuse-damaged-source")
            {
                mark.wait()?;
            }
        }
        Ok(())
    }

    /// Checks whether a write of the range, or one whose bytes it read, is known to have failed. Does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::SourceFailed`].
    pub(crate) fn check_sources(&self, range: &Range<usize>) -> Result<()> {
        loop {
            let mut found = FoundWrites::default();
            self.find(range, &mut found);
            if let Some(mark) = found.mark {
                mark.wait()?;
            }
            let (complete, open): (Vec<_>, Vec<_>) =
                found.writes.into_iter().partition(|write| write.fence.is_complete());
            if complete.is_empty() {
                return open.iter().try_for_each(|write| write.fence.outcome_of_sources());
            }
            // The uses that these covered count again if they wrote nothing.
            self.record_outcomes(&complete);
        }
    }

    /// Finds the fallible writes that a reader of a range depends on.
    fn find(&self, range: &Range<usize>, found: &mut FoundWrites) {
        self.in_steps(range.start, |table, from, _| {
            let (rest, mut after) = (from..range.end, Dependencies::default());
            table.collect(&rest, Access::Read, None, &mut Scan::default(), &mut after, Some(found))
        });
    }

    /// Applies the outcome of complete writes: marks the bytes of a failed one, and removes a successful one.
    pub(super) fn record_outcomes(&self, writes: &[FallibleWrite]) {
        for write in writes {
            let Some(outcome) = write.fence.outcome() else { continue };
            let outcome_of_write = match &outcome {
                Ok(()) => WriteOutcome::Succeeded,
                Err(_) if crate::mutant!("core/mark-failed-writes") => WriteOutcome::Succeeded,
                Err(error) if damages(write, error) => WriteOutcome::Damaged(error),
                Err(_) if crate::mutant!("core/untouched-bytes-stay-marked") => WriteOutcome::Succeeded,
                Err(_) => WriteOutcome::Untouched,
            };
            self.in_steps(write.range.start, |table, from, removed| {
                table.record_outcome(&(from..write.range.end), write, outcome_of_write, removed)
            });
        }
    }

    /// Removes the marks of a range.
    pub(crate) fn assume_written(&self, range: &Range<usize>) {
        // Failures not yet noticed must be marked first, so that their marks are removed, too.
        let mut found = FallibleWrites::default();
        self.in_steps(range.start, |table, from, _| {
            table.change(&(from..range.end), &mut { STEPS_PER_LOCK }, |origins, segment| {
                origins.find_unresolved(segment.range(), &segment.uses, true, &mut found);
            })
        });
        self.record_outcomes(&found);
        self.in_steps(range.start, |table, from, removed| {
            let rest = from..range.end;
            table.cut_out(&rest);
            table.prune(&rest, removed, |_, used| used.kind() == UseKind::Mark)
        });
    }
}

/// Returns whether a failed write may have damaged bytes. If its device is lost, the bytes are lost, too,
/// which the device reports.
fn damages(write: &FallibleWrite, error: &Error) -> bool {
    error.kind() != ErrorKind::DeviceLost && write.fence.timeline().may_have_written(write.fence.point())
}

#[cold]
fn failure_of(FallibleWrite { range, claim, .. }: &FallibleWrite, error: &Error) -> Error {
    let Range { start, end } = range;
    let text = format!(
        "bytes {start} to {end} cannot be read: the operation that wrote them (claim {claim} of the allocation) failed"
    );
    source_failed(text, error)
}
