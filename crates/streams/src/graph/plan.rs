//! Which operations of a recording may run concurrently, and which wait for which.

use std::{
    array,
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use smallvec::SmallVec;
use transload_core::{Access, BufferId, Operation, RawBuffer};

/// Maximum number of concurrent branches: a device has few copy engines, and each branch needs a stream while recording.
pub(super) const BRANCHES: usize = 4;

/// Branch and dependencies of one operation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) branch: usize,
    /// Earlier operations of other branches that it must come after.
    pub(super) after: SmallVec<[usize; BRANCHES]>,
    /// Whether an operation of another branch waits for it.
    pub(super) is_awaited: bool,
}

/// By branch, an operation that others come after.
type Last = [Option<usize>; BRANCHES];

/// A range of bytes: its last write, and the reads since then, of which each branch's last one comes after the others.
#[derive(Clone, Copy)]
struct Span {
    end: usize,
    written: Last,
    read: Last,
}

/// The disjoint spans of one allocation, by their start.
#[derive(Default)]
struct Spans(BTreeMap<usize, Span>);

impl Spans {
    /// Notes the operations that a use comes after.
    fn note_conflicts(&self, range: &Range<usize>, access: Access, last: &mut Last) {
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        for (_, span) in self.0.range(first..range.end).filter(|(_, span)| span.end > range.start) {
            for (branch, last) in last.iter_mut().enumerate() {
                let waits_for_reads =
                    access == Access::Write && !transload_core::mutant!("streams/recorded-write-after-reads");
                let read = if waits_for_reads { span.read[branch] } else { None };
                *last = (*last).max(span.written[branch]).max(read);
            }
        }
    }

    /// Adds a use by an operation, of which `own` says branch and index.
    fn add(&mut self, range: Range<usize>, access: Access, own: Last) {
        self.split(range.start);
        self.split(range.end);
        if access == Access::Write {
            // Operations after this write are also after the uses that it covers.
            self.0.extract_if(range.clone(), |_, _| true).for_each(drop);
            self.0.insert(range.start, Span { end: range.end, written: own, read: Last::default() });
            return;
        }
        let (mut at, mut gaps) = (range.start, SmallVec::<[Range<usize>; 1]>::new());
        for (start, span) in self.0.range_mut(range.clone()) {
            if at < *start {
                gaps.push(at..*start);
            }
            span.read = array::from_fn(|branch| own[branch].or(span.read[branch]));
            at = span.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            self.0.insert(gap.start, Span { end: gap.end, written: Last::default(), read: own });
        }
    }

    /// Makes a span that contains `at` two.
    fn split(&mut self, at: usize) {
        if let Some((_, span)) = self.0.range_mut(..at).next_back()
            && span.end > at
        {
            let rest = *span;
            span.end = at;
            self.0.insert(at, rest);
        }
    }
}

/// Assigns a branch to every operation. Conflicting ones keep their order; others are distributed.
pub(super) fn plan(operations: &[Operation<'_>]) -> Vec<Step> {
    if let [_] = operations {
        return vec![Step::default()];
    }
    let mut steps: Vec<Step> = Vec::with_capacity(operations.len());
    let mut known: HashMap<BufferId, Spans> = HashMap::new();
    // Per branch: the last operation, and the number of operations.
    let mut branches: [(Option<usize>, usize); BRANCHES] = [(None, 0); BRANCHES];
    for (index, operation) in operations.iter().enumerate() {
        let uses = operation.uses();
        let uses = || uses.iter().filter(|(buffer, _)| !buffer.is_empty());
        let mut last_before = Last::default();
        for (buffer, access) in uses() {
            if let Some(spans) = known.get(&buffer.id()) {
                spans.note_conflicts(&range_of(buffer), *access, &mut last_before);
            }
        }
        let branch = choose(&branches, &last_before);
        let mut own = Last::default();
        own[branch] = Some(index);
        for (buffer, access) in uses() {
            known.entry(buffer.id()).or_default().add(range_of(buffer), *access, own);
        }
        let after: SmallVec<[usize; BRANCHES]> =
            (0..BRANCHES).filter(|other| *other != branch).filter_map(|other| last_before[other]).collect();
        for earlier in &after {
            if let Some(step) = steps.get_mut(*earlier) {
                step.is_awaited = true;
            }
        }
        branches[branch] = (Some(index), branches[branch].1 + 1);
        steps.push(Step { branch, after, is_awaited: false });
    }
    steps
}

/// Returns the branch that ends with an operation to wait for, else the shortest one.
fn choose(branches: &[(Option<usize>, usize); BRANCHES], before: &Last) -> usize {
    let continued =
        (0..BRANCHES).filter(|branch| before[*branch].is_some() && before[*branch] == branches[*branch].0);
    let shortest = || (0..BRANCHES).min_by_key(|branch| branches[*branch].1);
    continued.max_by_key(|branch| before[*branch]).or_else(shortest).unwrap_or(0)
}

fn range_of(buffer: &RawBuffer) -> Range<usize> {
    buffer.offset()..buffer.offset() + buffer.len()
}

#[cfg(test)]
#[path = "../../tests/unit/plan.rs"]
mod tests;
