//! Which operations of a recording may run concurrently, and which wait for which.

use std::{collections::HashMap, ops::Range};

use smallvec::SmallVec;
use transload_core::{Access, BufferId, Operation};

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

/// A use that later operations may conflict with.
struct Use {
    range: Range<usize>,
    access: Access,
    by: usize,
}

/// Assigns a branch to every operation. Conflicting ones keep their order; others are distributed.
pub(super) fn plan(operations: &[Operation<'_>]) -> Vec<Step> {
    if let [_] = operations {
        return vec![Step::default()];
    }
    let mut steps: Vec<Step> = Vec::with_capacity(operations.len());
    let mut known: HashMap<BufferId, Vec<Use>> = HashMap::new();
    // Per branch: the last operation, and the number of operations.
    let mut branches: [(Option<usize>, usize); BRANCHES] = [(None, 0); BRANCHES];
    for (index, operation) in operations.iter().enumerate() {
        let mut last_before: [Option<usize>; BRANCHES] = [None; BRANCHES];
        for (buffer, access) in operation.uses() {
            let range = buffer.offset()..buffer.offset() + buffer.len();
            let uses = known.entry(buffer.id()).or_default();
            for earlier in uses.iter().filter(|earlier| earlier.by != index) {
                if overlaps(&earlier.range, &range)
                    && (access == Access::Write || earlier.access == Access::Write)
                {
                    let branch = steps.get(earlier.by).map_or(0, |step| step.branch);
                    last_before[branch] = last_before[branch].max(Some(earlier.by));
                }
            }
            if access == Access::Write {
                // Operations after this write are also after the uses that it covers.
                uses.retain(|earlier| {
                    earlier.by == index || earlier.range.start < range.start || earlier.range.end > range.end
                });
            }
            uses.push(Use { range, access, by: index });
        }
        let branch = choose(&branches, &last_before);
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
fn choose(branches: &[(Option<usize>, usize); BRANCHES], before: &[Option<usize>; BRANCHES]) -> usize {
    let continued =
        (0..BRANCHES).filter(|branch| before[*branch].is_some() && before[*branch] == branches[*branch].0);
    let shortest = || (0..BRANCHES).min_by_key(|branch| branches[*branch].1);
    continued.max_by_key(|branch| before[*branch]).or_else(shortest).unwrap_or(0)
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}
