//! Which operations of a recording may run beside each other, and which wait for which.

use std::{collections::HashMap, ops::Range};

use smallvec::SmallVec;
use transload_core::{Access, BufferId, Operation};

/// Side by side at most: a device has few copy engines, and each lane is a stream for the time of recording.
pub(super) const LANES: usize = 4;

/// One operation's place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) lane: usize,
    /// Earlier operations of other lanes that it must come after.
    pub(super) after: SmallVec<[usize; LANES]>,
    /// Whether one of another lane waits for it.
    pub(super) is_awaited: bool,
}

/// A use that later operations may conflict with.
struct Use {
    range: Range<usize>,
    access: Access,
    by: usize,
}

/// Gives every operation a lane. Those in conflict keep the order given; others are spread.
pub(super) fn plan(operations: &[Operation<'_>]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::with_capacity(operations.len());
    let mut known: HashMap<BufferId, Vec<Use>> = HashMap::new();
    // Per lane the last operation, and how many there are.
    let mut lanes: [(Option<usize>, usize); LANES] = [(None, 0); LANES];
    for (index, operation) in operations.iter().enumerate() {
        let mut last_before: [Option<usize>; LANES] = [None; LANES];
        for (buffer, access) in operation.uses() {
            let range = buffer.offset()..buffer.offset() + buffer.len();
            let uses = known.entry(buffer.id()).or_default();
            for earlier in uses.iter().filter(|earlier| earlier.by != index) {
                if overlaps(&earlier.range, &range)
                    && (access == Access::Write || earlier.access == Access::Write)
                {
                    let lane = steps.get(earlier.by).map_or(0, |step| step.lane);
                    last_before[lane] = last_before[lane].max(Some(earlier.by));
                }
            }
            if access == Access::Write {
                // Whoever comes after this write comes after what it covers.
                uses.retain(|earlier| {
                    earlier.by == index || earlier.range.start < range.start || earlier.range.end > range.end
                });
            }
            uses.push(Use { range, access, by: index });
        }
        let lane = choose(&lanes, &last_before);
        let after: SmallVec<[usize; LANES]> =
            (0..LANES).filter(|other| *other != lane).filter_map(|other| last_before[other]).collect();
        for earlier in &after {
            if let Some(step) = steps.get_mut(*earlier) {
                step.is_awaited = true;
            }
        }
        lanes[lane] = (Some(index), lanes[lane].1 + 1);
        steps.push(Step { lane, after, is_awaited: false });
    }
    steps
}

/// The lane that ends with what the operation waits for anyway, else the emptiest one.
fn choose(lanes: &[(Option<usize>, usize); LANES], before: &[Option<usize>; LANES]) -> usize {
    let goes_on = (0..LANES).filter(|lane| before[*lane].is_some() && before[*lane] == lanes[*lane].0);
    let emptiest = || (0..LANES).min_by_key(|lane| lanes[*lane].1);
    goes_on.max_by_key(|lane| before[*lane]).or_else(emptiest).unwrap_or(0)
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}
