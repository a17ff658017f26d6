//! The search for what a use must come after.

use std::{ops::Range, sync::Arc};

use super::{
    Dependencies,
    commit_list::Progress,
    request::{ClaimRequest, Claimed},
    steps,
    table::{STEPS_PER_LOCK, Table},
    uses::{FallibleWrites, Use, UseKind, uncovered},
};
use crate::{Access, Fence, Timeline};

/// A scan of segments under one lock.
pub(super) struct Scan {
    /// How many segments it may still visit.
    pub(super) steps: usize,
    /// The last conflicting use, unless it may have damaged bytes: most of a list's ranges have it in common.
    last: Option<Use>,
    /// The last segment, if it has only such a use.
    known: Range<usize>,
}

impl Default for Scan {
    fn default() -> Self {
        Self { steps: STEPS_PER_LOCK, last: None, known: 0..0 }
    }
}

/// The fallible writes of a range to be read.
#[derive(Debug, Default)]
pub(super) struct FoundWrites {
    pub(super) writes: FallibleWrites,
    pub(super) mark: Option<Fence>,
}

impl Table {
    /// Collects what a group must come after: see [`collect`](Self::collect). Fallible writes of bytes that it reads go to `read`, and those of
    /// bytes that it may leave unchanged to `kept`. Begins at a byte of the range with the index `first`, and returns where to continue.
    pub(super) fn collect_all(
        &mut self,
        group: &[Claimed<'_>],
        request: &ClaimRequest<'_>,
        (first, byte): Progress,
        after: &mut Dependencies,
        [read, kept]: [&mut FoundWrites; 2],
    ) -> Option<Progress> {
        if self.segments.is_empty() {
            return None;
        }
        let rest = group.get(first..).unwrap_or_default();
        let part = rest.get(..STEPS_PER_LOCK).unwrap_or(rest);
        let mut scan = Scan::default();
        for (index, one) in part.iter().enumerate() {
            let start = if index == 0 { byte.max(one.range.start) } else { one.range.start };
            let found = match one.access {
                Access::Read => Some(&mut *read),
                Access::Write => Some(&mut *kept).filter(|_| request.inherits),
            };
            let range = start..one.range.end;
            if let Some(next) = self.collect(&range, one.access, request.own, &mut scan, after, found) {
                return Some((first + index, next));
            }
        }
        (part.len() < rest.len()).then_some((first + part.len(), 0))
    }

    /// Collects the fences of conflicting uses that are not known to be complete, except those of the
    /// timeline `own`. If `found` is given, adds all fallible writes to it, complete or not, and the last
    /// mark. Uses covered by a later write are left out. Each segment takes one of the scan's
    /// steps; returns where to continue when none is left.
    #[inline]
    pub(super) fn collect(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        scan: &mut Scan,
        after: &mut Dependencies,
        mut found: Option<&mut FoundWrites>,
    ) -> Option<usize> {
        if scan.known.start <= range.start && range.end <= scan.known.end {
            return None;
        }
        let mut at = self.segments.find(range)?;
        while let Some(segment) = self.segments.get(at).filter(|segment| segment.start < range.end) {
            if scan.steps == 0 {
                return Some(range.start.max(segment.start));
            }
            scan.steps -= 1;
            steps::count();
            let last = scan.last;
            let is_known = |used: &Use| {
                !access.conflicts_with(used.access()) || last.is_some_and(|last| last.replaces(used))
            };
            if !matches!(segment.uses.as_slice(), [used] if is_known(used)) {
                let shared = range.start.max(segment.start)..range.end.min(segment.end);
                let covered = uncovered(&segment.uses);
                if covered > 0 && !crate::mutant!("core/covered-of-other-devices") {
                    self.origins.collect_covered(&segment.uses, covered, own, after);
                }
                // A read conflicts with writes only, which come first.
                let met = segment.uses.iter().skip(covered);
                for used in met.take_while(|used| access.conflicts_with(used.access())) {
                    let Some(origin) = self.origins.of(used) else { continue };
                    if let Some(found) = &mut found {
                        if used.kind() == UseKind::Mark {
                            found.mark = Some(origin.fence(used));
                        } else if used.may_damage() {
                            let fallible_write = origin.fallible_write(used, shared.clone());
                            found.writes.push(fallible_write);
                        }
                    }
                    if !own.is_some_and(|own| origin.is_of(own)) && !origin.is_reached(used.point) {
                        after.add(origin.timeline(), used.point);
                    }
                    scan.last = Some(*used).filter(Use::is_sound);
                }
            }
            if segment.end >= range.end {
                let is_known = |used: &Use| scan.last.is_some_and(|last| last.replaces(used));
                if matches!(segment.uses.as_slice(), [used] if is_known(used)) {
                    scan.known = segment.range();
                }
                break;
            }
            at = self.segments.after(at);
        }
        None
    }
}
