//! Claims, commits, withdrawals, views and loans in random order, compared with a model of each byte's uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use proptest::prelude::*;
use transload_core::{
    Access, Claims, ErrorKind, Fence, HostView, HostViewMut, Loan, MemoryKind, Operation, Pattern, Queue,
    RawBuffer, TimelineId, Timing, TrySubmitError, Turns, submit,
};

use crate::mock::{MockQueue, host_buffer, key};

/// Ranges, each with whether it is written.
type Pieces = Vec<(Range<usize>, bool)>;

const BYTES: usize = 192;
const QUEUES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Claims pieces, and commits at once.
    Use {
        queue: usize,
        pieces: Pieces,
    },
    /// A fill by `submit`, which leaves out its own queue's work.
    Fill {
        queue: usize,
        range: Range<usize>,
    },
    /// A fill that its queue refuses.
    Refused {
        queue: usize,
        range: Range<usize>,
    },
    /// Claims pieces, for later.
    Claim {
        pieces: Pieces,
    },
    Commit {
        which: usize,
        queue: usize,
    },
    Withdraw {
        which: usize,
    },
    View {
        range: Range<usize>,
        writes: bool,
    },
    CloseView {
        which: usize,
    },
    Lend {
        range: Range<usize>,
        writes: bool,
    },
    EndLoan {
        which: usize,
        queue: usize,
        behind: bool,
    },
    Complete {
        queue: usize,
        share: usize,
    },
}

fn range() -> impl Strategy<Value = Range<usize>> {
    let short = (0..BYTES, 1..12_usize).prop_map(|(from, len)| from..(from + len).min(BYTES));
    let any = (0..BYTES, 0..=BYTES).prop_map(|(a, b)| a.min(b)..a.max(b));
    prop_oneof![6 => short, 1 => any, 1 => Just(0..BYTES)]
}

/// Disjoint pieces: a use conflicts with none of its own call.
fn pieces() -> impl Strategy<Value = Pieces> {
    // Few, or a list.
    let count = prop_oneof![2 => 1..4_usize, 1 => 8..40_usize];
    let pieces = count.prop_flat_map(|count| proptest::collection::vec((range(), any::<bool>()), count));
    pieces.prop_map(|mut pieces| {
        pieces.sort_by_key(|(range, _)| range.start);
        let mut end = 0;
        pieces.retain(|(range, _)| {
            let apart = range.start >= end;
            if apart {
                end = range.end;
            }
            apart
        });
        pieces
    })
}

fn step() -> impl Strategy<Value = Step> {
    let queue = 0..QUEUES;
    prop_oneof![
        8 => (queue.clone(), pieces()).prop_map(|(queue, pieces)| Step::Use { queue, pieces }),
        6 => (queue.clone(), range()).prop_map(|(queue, range)| Step::Fill { queue, range }),
        1 => (queue.clone(), range()).prop_map(|(queue, range)| Step::Refused { queue, range }),
        2 => pieces().prop_map(|pieces| Step::Claim { pieces }),
        2 => (0..4_usize, queue.clone()).prop_map(|(which, queue)| Step::Commit { which, queue }),
        1 => (0..4_usize).prop_map(|which| Step::Withdraw { which }),
        2 => (range(), any::<bool>()).prop_map(|(range, writes)| Step::View { range, writes }),
        2 => (0..4_usize).prop_map(|which| Step::CloseView { which }),
        1 => (range(), any::<bool>()).prop_map(|(range, writes)| Step::Lend { range, writes }),
        2 => (0..4_usize, queue.clone(), any::<bool>())
            .prop_map(|(which, queue, behind)| Step::EndLoan { which, queue, behind }),
        3 => (queue, 1..4_usize).prop_map(|(queue, share)| Step::Complete { queue, share }),
    ]
}

/// Operations of more ranges of an allocation are kept as lists.
const FEW: usize = 4;

/// Uses as queue, point and whether it writes.
type Uses = BTreeSet<(usize, u64, bool)>;

/// The uses of one byte in flight.
#[derive(Clone, Default)]
struct Byte {
    /// Those that later work has to wait for.
    last: Uses,
    /// Those that a later write came after, if either is a list's: later work waits for them by that, and may wait for them itself.
    covered: Uses,
}

struct Held {
    pieces: Pieces,
    is_pending: bool,
}

struct Model {
    bytes: Vec<Byte>,
    reached: [u64; QUEUES],
    /// The uses by lists.
    lists: Uses,
    /// By the number of the step that made it.
    held: BTreeMap<usize, Held>,
}

impl Model {
    fn open(
        &self,
        pieces: &[(Range<usize>, bool)],
        own: Option<usize>,
        which: impl Fn(&Byte) -> &Uses,
    ) -> BTreeMap<usize, u64> {
        let mut after = BTreeMap::new();
        for (range, writes) in pieces {
            for (queue, point, wrote) in self.bytes[range.clone()].iter().flat_map(&which) {
                let conflict = *writes || *wrote;
                if conflict && *point > self.reached[*queue] && Some(*queue) != own {
                    let last = after.entry(*queue).or_insert(0);
                    *last = (*last).max(*point);
                }
            }
        }
        after
    }

    /// Records a use. A write comes after all uses that it conflicts with, so these are removed.
    fn note(&mut self, pieces: &[(Range<usize>, bool)], queue: usize, point: u64) {
        for (range, writes) in pieces {
            for byte in &mut self.bytes[range.clone()] {
                if *writes {
                    let before = std::mem::take(&mut byte.last);
                    let is_kept = |used: &_| pieces.len() > FEW || self.lists.contains(used);
                    byte.covered.extend(before.into_iter().filter(is_kept));
                }
                byte.last.insert((queue, point, *writes));
                if pieces.len() > FEW {
                    self.lists.insert((queue, point, *writes));
                }
            }
        }
    }

    /// Whether a use conflicts with what is held: `Some(true)` where only with claims, which it would wait for.
    fn blocked(&self, pieces: &[(Range<usize>, bool)]) -> Option<bool> {
        let mut blocked = None;
        for held in self.held.values() {
            let conflict = held.pieces.iter().any(|(theirs, wrote)| {
                pieces.iter().any(|(range, writes)| {
                    (*writes || *wrote) && range.start.max(theirs.start) < range.end.min(theirs.end)
                })
            });
            if conflict {
                blocked = Some(blocked.unwrap_or(true) && held.is_pending);
            }
        }
        blocked
    }
}

#[allow(clippy::large_enum_variant, reason = "there are few")]
enum Open {
    Claims(Claims<'static>),
    Read(#[expect(dead_code, reason = "kept open")] HostView<'static>),
    Write(#[expect(dead_code, reason = "kept open")] HostViewMut<'static>),
    Loan(Loan),
}

struct World {
    queues: Vec<MockQueue>,
    whole: RawBuffer,
    model: Model,
    open: BTreeMap<usize, Open>,
}

impl World {
    fn new() -> Self {
        Self {
            queues: (0..QUEUES).map(|_| MockQueue::new()).collect(),
            whole: host_buffer(MemoryKind::Pinned, BYTES),
            model: Model {
                bytes: vec![Byte::default(); BYTES],
                reached: [0; QUEUES],
                lists: Uses::new(),
                held: BTreeMap::new(),
            },
            open: BTreeMap::new(),
        }
    }

    fn part(&self, range: &Range<usize>) -> &'static RawBuffer {
        // What is open borrows it; leaked, as tests are short.
        Box::leak(Box::new(self.whole.slice(range.clone()).unwrap()))
    }

    /// A point of a queue, for work that the test makes up.
    fn fence(&self, queue: usize) -> Fence {
        self.queues[queue].write(&host_buffer(MemoryKind::Pinned, 1)).unwrap()
    }

    /// Checks what an operation waits for.
    fn check(
        &self,
        after: impl IntoIterator<Item = (TimelineId, u64)>,
        pieces: &[(Range<usize>, bool)],
        own: Option<usize>,
    ) {
        let mut after: BTreeMap<_, _> = after.into_iter().collect();
        let expected = self.model.open(pieces, own, |byte| &byte.last);
        let covered = self.model.open(pieces, own, |byte| &byte.covered);
        for (index, queue) in self.queues.iter().enumerate() {
            let (point, least) = (after.remove(&queue.timeline().id()), expected.get(&index).copied());
            assert!(point >= least, "{pieces:?}: {point:?} of queue {index}, not {least:?}");
            let most = least.max(covered.get(&index).copied());
            assert!(point <= most, "{pieces:?}: {point:?} of queue {index}, at most {most:?}");
        }
        assert!(after.is_empty(), "{pieces:?}: unknown queues");
    }

    fn claim(&self, pieces: &[(Range<usize>, bool)]) -> Option<Claims<'static>> {
        let access = |writes: bool| if writes { Access::Write } else { Access::Read };
        let mut uses: Vec<_> =
            pieces.iter().map(|(range, writes)| (self.part(range), access(*writes))).collect();
        match (Claims::try_acquire(&mut uses, &Turns::default()), self.model.blocked(pieces)) {
            (Ok(claims), None) => {
                self.check(claims.after().iter().map(key), pieces, None);
                Some(claims)
            }
            (Err(TrySubmitError::WouldBlock(_)), Some(true)) => None,
            // Where a claim and a view are in conflict, either may be met first.
            (Err(_), Some(false)) => None,
            (claimed, expected) => panic!("{pieces:?}: {claimed:?}, blocked {expected:?}"),
        }
    }

    /// The number of the `which`-th thing open of a kind.
    fn nth(&self, which: usize, kind: impl Fn(&Open) -> bool) -> Option<usize> {
        let mut numbers = self.open.iter().filter(|(_, open)| kind(open)).map(|(number, _)| *number);
        numbers.nth(which)
    }

    fn close(&mut self, number: Option<usize>) -> Option<(Open, Pieces)> {
        let number = number?;
        let pieces = self.model.held.remove(&number)?.pieces;
        Some((self.open.remove(&number)?, pieces))
    }

    fn hold(&mut self, number: usize, open: Open, pieces: Pieces) {
        let is_pending = matches!(open, Open::Claims(_));
        self.open.insert(number, open);
        self.model.held.insert(number, Held { pieces, is_pending });
    }

    fn step(&mut self, number: usize, step: Step) {
        match step {
            Step::Use { queue, pieces } => {
                let Some(claims) = self.claim(&pieces) else { return };
                let fence = self.fence(queue);
                // SAFETY: the points stand for no work at all.
                unsafe { claims.commit(&fence) };
                self.model.note(&pieces, queue, fence.point());
            }
            Step::Fill { queue, range } => {
                let pieces = [(range.clone(), true)];
                // It would block for good behind a claim that this thread holds.
                if self.model.blocked(&pieces) == Some(true) {
                    return;
                }
                let fill = Operation::Fill { dst: self.part(&range), pattern: Pattern::U8(0) };
                match submit(&self.queues[queue], &fill, Timing::Off) {
                    Ok(fence) => {
                        assert_eq!(self.model.blocked(&pieces), None);
                        self.check(self.queues[queue].last_after(), &pieces, Some(queue));
                        self.model.note(&pieces, queue, fence.point());
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Busy);
                        assert_eq!(self.model.blocked(&pieces), Some(false));
                    }
                }
            }
            Step::Refused { queue, range } => {
                if self.model.blocked(&[(range.clone(), true)]).is_some() {
                    return;
                }
                self.queues[queue].refuse.store(true, std::sync::atomic::Ordering::SeqCst);
                assert!(self.queues[queue].write(self.part(&range)).is_err());
                self.queues[queue].refuse.store(false, std::sync::atomic::Ordering::SeqCst);
            }
            Step::Claim { pieces } => {
                if let Some(claims) = self.claim(&pieces) {
                    self.hold(number, Open::Claims(claims), pieces);
                }
            }
            Step::Commit { which, queue } => {
                let number = self.nth(which, |open| matches!(open, Open::Claims(_)));
                if let Some((Open::Claims(claims), pieces)) = self.close(number) {
                    let fence = self.fence(queue);
                    // SAFETY: the points stand for no work at all.
                    unsafe { claims.commit(&fence) };
                    self.model.note(&pieces, queue, fence.point());
                }
            }
            Step::Withdraw { which } => {
                let number = self.nth(which, |open| matches!(open, Open::Claims(_)));
                let _withdrawn = self.close(number);
            }
            Step::View { range, writes } => {
                let pieces = vec![(range.clone(), writes)];
                let part = self.part(&range);
                let view =
                    if writes { part.try_write().map(Open::Write) } else { part.try_read().map(Open::Read) };
                let is_free = |which: &dyn Fn(&Byte) -> &Uses| {
                    self.model.blocked(&pieces).is_none() && self.model.open(&pieces, None, which).is_empty()
                };
                let free = is_free(&|byte| &byte.last);
                let is_known = view.is_ok() || is_free(&|byte| &byte.covered);
                assert!(view.is_ok() == free || !is_known, "{range:?}, writes {writes}, free {free}");
                if let Ok(view) = view {
                    self.hold(number, view, pieces);
                }
            }
            Step::CloseView { which } => {
                let number = self.nth(which, |open| matches!(open, Open::Read(_) | Open::Write(_)));
                let _closed = self.close(number);
            }
            Step::Lend { range, writes } => {
                let pieces = vec![(range.clone(), writes)];
                if self.model.blocked(&pieces) == Some(true) {
                    return;
                }
                let loan = self.part(&range).lend(if writes { Access::Write } else { Access::Read });
                assert_eq!(loan.is_ok(), self.model.blocked(&pieces).is_none());
                if let Ok(loan) = loan {
                    self.check(loan.after().iter().map(key), &pieces, None);
                    self.hold(number, Open::Loan(loan), pieces);
                }
            }
            Step::EndLoan { which, queue, behind } => {
                let number = self.nth(which, |open| matches!(open, Open::Loan(_)));
                if let Some((Open::Loan(mut loan), pieces)) = self.close(number)
                    && behind
                {
                    let fence = self.fence(queue);
                    loan.end_after(std::slice::from_ref(&fence));
                    // What was there before stays.
                    for (range, writes) in &pieces {
                        for byte in &mut self.model.bytes[range.clone()] {
                            byte.last.insert((queue, fence.point(), *writes));
                        }
                    }
                }
            }
            Step::Complete { queue, share } => {
                let open = self.queues[queue].count() - self.model.reached[queue];
                self.model.reached[queue] += open.div_ceil(share as u64);
                self.queues[queue].complete(self.model.reached[queue]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn waits_are_exactly_those_that_the_bytes_ask_for(steps in proptest::collection::vec(step(), 1..160)) {
        let mut world = World::new();
        for (number, step) in steps.into_iter().enumerate() {
            world.step(number, step);
        }
    }
}
