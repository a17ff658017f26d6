//! Turns the claims of a list into uses, in the order of addresses: segments that a range has for itself change in place, and blocks of
//! other segments are rewritten.

use std::ops::Range;

use super::{
    commit::{Effect, Retained, add_use},
    request::Claimed,
    segments::{Rewrite, Segment},
    table::{STEPS_PER_LOCK, Table},
    uses::{Removed, Use},
};
use crate::{Access, Fence};

/// Where the commit of a list continues: the index of a range, and its first byte that is not committed.
pub(super) type Progress = (usize, usize);

impl Table {
    /// Replaces the claims of a list by uses. Returns where to continue after [`STEPS_PER_LOCK`] ranges and segments. The claims block conflicting uses until they are released.
    pub(super) fn commit_list(
        &mut self,
        list: &[Claimed<'_>],
        (fence, retained): (&Fence, Retained),
        (first, mut from): Progress,
        removed: &mut Removed,
    ) -> Option<Progress> {
        let mut steps = STEPS_PER_LOCK;
        // Counted until the end, so that its origin stays.
        let any = self.origins.make(fence, 0, Access::Read);
        let (mut rewrite, mut next): (Option<Rewrite>, _) = (None, None);
        for (index, one) in list.iter().enumerate().skip(first) {
            let (is_new, begin) = (from <= one.range.start, from.max(one.range.start));
            from = 0;
            if steps == 0 {
                next = Some((index, begin));
                break;
            }
            steps -= 1;
            let Some(ticket) = one.ticket.filter(|_| begin < one.range.end) else { continue };
            let used = any.of_claim(ticket.claim, one.access);
            if let Some(done) = rewrite.take_if(|rewrite| rewrite.until <= begin) {
                self.segments.put_back(done);
            }
            if rewrite.is_none() && is_new && self.commit_in_place(one, used, retained) {
                continue;
            }
            // A range that is continued may be merged with what was committed of it.
            let byte = if is_new { begin } else { begin - 1 };
            let open = rewrite.get_or_insert_with(|| self.segments.take(byte));
            let reached = self.rewrite(open, begin..one.range.end, (used, retained), &mut steps, removed);
            if reached < one.range.end {
                next = Some((index, reached));
                break;
            }
        }
        rewrite.into_iter().for_each(|rewrite| self.segments.put_back(rewrite));
        self.origins.release(&any, removed);
        next
    }

    /// Replaces the uses of a segment of exactly this range, if there is one, and no origin is removed by that. Returns whether it did.
    fn commit_in_place(
        &mut self,
        Claimed { range, .. }: &Claimed<'_>,
        used: Use,
        retained: Retained,
    ) -> bool {
        if retained.cross_device {
            return false;
        }
        let Some(segment) = self.segments.find(range).and_then(|at| self.segments.get_mut(at)) else {
            return false;
        };
        segment.start == range.start
            && segment.end == range.end
            && self.origins.replace(&mut segment.uses, used, retained.damage)
    }

    /// Adds a use to a range. Returns the first byte that is left when there are no steps any more.
    fn rewrite(
        &mut self,
        rewrite: &mut Rewrite,
        Range { mut start, end }: Range<usize>,
        (used, retained): (Use, Retained),
        steps: &mut usize,
        removed: &mut Removed,
    ) -> usize {
        let effect = Effect::of(used.access(), retained);
        let replaces = effect == Effect::Replaces && !used.may_damage() && !retained.cross_device;
        rewrite.keep_before(start);
        while start < end && *steps > 0 {
            *steps -= 1;
            let next = rewrite.next(&mut self.segments, end);
            let begin = next.as_ref().map_or(end, |next| next.start.max(start));
            if start < begin {
                // Unused bytes.
                self.origins.share(&used);
                self.push(rewrite, Segment::new(start..begin, used), removed);
            }
            start = begin;
            let Some(mut segment) = next else { break };
            if segment.start < start {
                let left = segment.uses.clone();
                left.iter().for_each(|used| self.origins.share(used));
                let left = Segment { start: segment.start, end: start, uses: left };
                self.push(rewrite, left, removed);
                segment.start = start;
            }
            start = segment.end.min(end);
            if segment.end > end {
                let right = segment.uses.clone();
                right.iter().for_each(|used| self.origins.share(used));
                rewrite.put_back(Segment { start: end, end: segment.end, uses: right });
                segment.end = end;
            }
            if replaces {
                self.origins.share(&used);
                segment.uses.drain(..).for_each(|old| self.origins.release(&old, removed));
                segment.uses.push(used);
            } else if retained.cross_device || !self.origins.replace(&mut segment.uses, used, retained.damage)
            {
                self.origins.share(&used);
                let effect = (effect, retained.cross_device);
                add_use(&mut self.origins, &mut segment, used, effect, removed);
            }
            self.push(rewrite, segment, removed);
        }
        start
    }

    fn push(&mut self, rewrite: &mut Rewrite, segment: Segment, removed: &mut Removed) {
        let merged = rewrite.push(segment);
        merged.iter().flatten().for_each(|used| self.origins.release(used, removed));
    }
}
