//! Every interleaving of a buffer's table, its lock, waiting for another's claim, and a queue's counts, that loom finds with
//! two preemptions. The files under test are included as they are, with loom's primitives for std's.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]
#![allow(dead_code, unused_imports, reason = "not all of what is included is used")]
#![allow(unreachable_pub, reason = "public where it is not included")]

use std::{any::Any, ptr::NonNull, task::Waker};

use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};
use transload_core::{
    BufferId, DeviceId, Error, ErrorKind, OperationInfo, OperationKind, Place, Result, TransferPath,
    catch_panic, mutant,
};

use crate::{
    hazard::{Access, Attempt, Blocker, ClaimRequest, Claimed, Hazards, Opening, Retained, WakeList},
    queue::fence::{Fence, Timeline, TimelineId, next_timeline_id},
    raw_buffer::RawBuffer,
    sync::spin_lock::SpinLock,
};

mod raw_buffer;
mod sync;
mod tallies;

#[path = "../../src/queue/fence.rs"]
mod fence;
#[path = "../../src/hazard/mod.rs"]
mod hazard;
#[path = "../../src/queue/source.rs"]
mod source;
#[path = "../../src/profile/tally.rs"]
mod tally;

/// The folders of the crate, as the included files name them.
mod queue {
    pub(crate) use crate::{fence, source};
}

/// Runs a model with at most two preemptions.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

#[test]
fn lock_is_exclusive_and_orders_accesses() {
    model(|| {
        let shared = Arc::new((SpinLock::new(0_u32), AtomicUsize::new(0)));
        let add = |shared: &(SpinLock<u32>, AtomicUsize)| {
            let mut value = shared.0.lock();
            assert_eq!(shared.1.fetch_add(1, Ordering::Relaxed), 0, "two have it");
            *value += 1;
            shared.1.fetch_sub(1, Ordering::Relaxed);
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || add(&shared))
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        add(&shared);
        assert_eq!(*shared.0.lock(), 3);
    });
}

/// A timeline whose work never ends.
struct Line(TimelineId);

// SAFETY: nothing of it touches memory.
unsafe impl Timeline for Line {
    fn id(&self) -> TimelineId {
        self.0
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        0
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Ok(false)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Table {
    hazards: Hazards,
    buffer: RawBuffer,
    /// Whether some submitter is between its claim and its commit.
    enqueueing: AtomicBool,
    /// Whether a list was committed.
    committed: AtomicBool,
}

impl Table {
    fn new() -> Arc<Self> {
        let storage = Box::leak(Box::new([0_u8; 16]));
        let kind = transload_core::MemoryKind::Pageable;
        // SAFETY: leaked, and not accessed.
        let storage =
            unsafe { transload_core::HostBytes::new((), NonNull::from(storage).cast(), 16, kind, true) };
        let buffer = transload_core::RawBuffer::new(Box::new(storage), &std::sync::Arc::default());
        let hazards = Hazards::with_fences(0..16, &[]);
        Arc::new(Self {
            hazards,
            buffer: RawBuffer(buffer),
            enqueueing: AtomicBool::new(false),
            committed: AtomicBool::new(false),
        })
    }

    /// Claims ranges for writing, unless one is blocked.
    fn try_claim<const N: usize>(
        &self,
        ranges: [std::ops::Range<usize>; N],
    ) -> Result<[Claimed<'_>; N], [Claimed<'_>; N]> {
        let mut group =
            ranges.map(|range| Claimed { buffer: &self.buffer, range, access: Access::Write, ticket: None });
        let request = ClaimRequest { own: None, turn: None, inherits: false };
        let claimed = self.hazards.claim(&mut group, &request, &mut None);
        if matches!(claimed, Ok(Attempt::Held(()))) { Ok(group) } else { Err(group) }
    }

    /// Claims a range for writing, which nothing blocks.
    fn claim(&self, range: std::ops::Range<usize>) -> [Claimed<'_>; 1] {
        self.try_claim([range]).unwrap_or_else(|_| unreachable!("nothing blocks it"))
    }

    /// Like `Claims::acquire`, a driver call, and `Claims::commit`. Returns the number of fences that it waits for.
    fn submit(&self, fence: &Fence) -> usize {
        let mut turn = None;
        let range = 0..16;
        loop {
            let mut group =
                [Claimed { buffer: &self.buffer, range: range.clone(), access: Access::Write, ticket: None }];
            let mut earlier = None;
            let request = ClaimRequest { own: None, turn, inherits: false };
            match self.hazards.claim(&mut group, &request, &mut earlier).unwrap() {
                Attempt::Held(()) => {
                    assert!(!self.enqueueing.swap(true, Ordering::Relaxed), "two have claimed the range");
                    assert!(self.enqueueing.swap(false, Ordering::Relaxed));
                    self.hazards.commit(&group, fence, Retained::default(), &mut WakeList::default());
                    if let Some(turn) = turn {
                        self.hazards.end_turn(turn);
                    }
                    return earlier.unwrap_or_default().after.len();
                }
                Attempt::Blocked(Blocker::Claim) => {
                    turn = Some(self.hazards.keep_turn(turn, &range, Access::Write, &[]));
                    self.hazards.wait_for_commit(&range, Access::Write);
                }
                Attempt::Blocked(Blocker::Fences(_) | Blocker::Turn(_)) => {
                    unreachable!("nobody was overtaken so often")
                }
            }
        }
    }
}

fn fence() -> Fence {
    Fence::new(std::sync::Arc::new(Line(next_timeline_id())), 1)
}

#[test]
fn claim_waits_for_earlier_commit_without_lost_wakeup() {
    model(|| {
        let table = Table::new();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.submit(&fence()))
        };
        let waits = table.submit(&fence());
        let other = other.join().unwrap();
        assert_eq!(waits + other, 1, "one of them comes after the other");
        assert_eq!(table.hazards.outstanding().len(), 1);
    });
}

/// A list, a range between its pieces, and a view of one of them.
#[test]
fn lists_conflict_by_range() {
    model(|| {
        let table = Table::new();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || match table.try_claim([0, 2, 4, 6, 8, 10].map(|at| at..at + 1)) {
                Ok(group) => {
                    assert!(!table.enqueueing.swap(true, Ordering::Relaxed), "a view is open");
                    table.enqueueing.store(false, Ordering::Relaxed);
                    table.hazards.commit(&group, &fence(), Retained::default(), &mut WakeList::default());
                    table.committed.store(true, Ordering::Release);
                }
                Err(group) => table.hazards.withdraw_all(&group, &mut WakeList::default()),
            })
        };
        let gap = table.claim(3..4);
        table.hazards.withdraw_all(&gap, &mut WakeList::default());
        let is_committed = table.committed.load(Ordering::Acquire);
        let view = table.hazards.try_open(&(4..5), Access::Write, None, Opening::View).unwrap();
        assert!(!is_committed || matches!(view, Attempt::Blocked(Blocker::Fences(_))), "it is in flight");
        if let Attempt::Held(ticket) = view {
            assert!(!table.enqueueing.swap(true, Ordering::Relaxed), "the list is claimed");
            table.enqueueing.store(false, Ordering::Relaxed);
            table.hazards.withdraw(&(4..5), ticket, &mut WakeList::default());
        }
        other.join().unwrap();
        // Nothing is left of a list that was blocked.
        assert!([0, 1].contains(&table.hazards.outstanding().len()));
        assert!(table.try_claim([0..4, 4..8, 8..10, 10..12, 12..16]).is_ok());
    });
}

#[test]
fn view_opens_only_after_claim_is_withdrawn() {
    model(|| {
        let table = Table::new();
        let range = 0..16;
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let mut group =
                    [Claimed { buffer: &table.buffer, range: 0..16, access: Access::Read, ticket: None }];
                let request = ClaimRequest { own: None, turn: None, inherits: false };
                let claimed = table.hazards.claim(&mut group, &request, &mut None);
                if let (Ok(Attempt::Held(())), Some(ticket)) = (claimed, group[0].ticket) {
                    assert!(!table.enqueueing.swap(true, Ordering::Relaxed), "a view is open");
                    table.enqueueing.store(false, Ordering::Relaxed);
                    table.hazards.withdraw(&(0..16), ticket, &mut WakeList::default());
                }
            })
        };
        loop {
            match table.hazards.try_open(&range, Access::Write, None, Opening::View).unwrap() {
                Attempt::Held(ticket) => {
                    assert!(!table.enqueueing.swap(true, Ordering::Relaxed), "a claim is held");
                    table.enqueueing.store(false, Ordering::Relaxed);
                    table.hazards.withdraw(&range, ticket, &mut WakeList::default());
                    break;
                }
                Attempt::Blocked(_) => table.hazards.wait_for_commit(&range, Access::Write),
            }
        }
        other.join().unwrap();
    });
}

impl Table {
    /// As a short copy of the host over another's range. Returns whether it was done.
    fn copy_to(&self, other: &Self) -> bool {
        let busy = [&self.enqueueing, &other.enqueueing];
        let copy = || {
            busy.iter().for_each(|busy| assert!(!busy.swap(true, Ordering::Relaxed), "two use the range"));
            busy.iter().for_each(|busy| busy.store(false, Ordering::Relaxed));
        };
        self.hazards.copy_if_free(&(0..16), (&other.hazards, &(0..16)), copy).is_some()
    }

    fn counts(&self) -> (u64, u64) {
        (self.hazards.uses(), self.hazards.writes())
    }
}

#[test]
fn opposite_short_copies_during_submission_are_atomic() {
    model(|| {
        let tables = [Table::new(), Table::new()];
        let other = {
            let [a, b] = tables.clone();
            thread::spawn(move || u64::from(a.copy_to(&b)))
        };
        let [a, b] = &tables;
        let back = u64::from(b.copy_to(a));
        a.submit(&fence());
        let there = other.join().unwrap();
        assert_eq!((a.counts(), b.counts()), ((there + back + 1, back + 1), (there + back, there)));
        assert!(!b.copy_to(a) && !a.copy_to(b), "the submitted work is in flight");
    });
}

#[test]
fn short_copy_skips_claims_only_without_known_uses() {
    model(|| {
        let (a, b, range) = (Table::new(), Table::new(), 0..16);
        assert!(a.copy_to(&b) && b.copy_to(&a) && a.copy_to(&b) && !a.copy_to(&a));
        assert_eq!((a.counts(), b.counts()), ((3, 1), (3, 2)));
        let done = Fence::new(std::sync::Arc::new(Line(next_timeline_id())), 0);
        for (of, access) in [(&a, Access::Write), (&b, Access::Read), (&b, Access::Write)] {
            let view = of.hazards.try_open(&range, access, None, Opening::View).unwrap();
            let Attempt::Held(view) = view else { unreachable!("nothing is in flight") };
            assert!(!a.copy_to(&b), "a view is open");
            of.hazards.withdraw(&range, view, &mut WakeList::default());
            let turn = of.hazards.keep_turn(None, &range, access, &[]);
            assert!(!a.copy_to(&b), "somebody waits");
            of.hazards.end_turn(turn);
            assert!(a.copy_to(&b));
        }
        // A write that is over leaves nothing to wait for, but something to forget where it is replaced.
        b.submit(&done);
        assert!(!a.copy_to(&b) && b.copy_to(&a));
        b.submit(&fence());
        assert!(!a.copy_to(&b) && !b.copy_to(&a), "it is in flight");
    });
}

/// A view looks through more segments than in one go, and does not open; meanwhile another range is used.
#[test]
fn use_count_grows_with_each_use() {
    const SEGMENTS: usize = 257;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20 * SEGMENTS;
    builder.check(|| {
        let table = Table::new();
        let fence = fence();
        for at in (0..2 * SEGMENTS).step_by(2) {
            let group = table.claim(at..at + 1);
            table.hazards.commit(&group, &fence, Retained::default(), &mut WakeList::default());
        }
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let before = (table.hazards.uses(), table.hazards.writes());
                let group = table.claim(4000..4001);
                table.hazards.withdraw_all(&group, &mut WakeList::default());
                let after = (table.hazards.uses(), table.hazards.writes());
                assert!(after.0 > before.0 && after.1 > before.1, "{before:?} and {after:?}");
            })
        };
        let opens = table.hazards.try_open(&(0..2 * SEGMENTS), Access::Write, None, Opening::View).unwrap();
        assert!(matches!(opens, Attempt::Blocked(Blocker::Fences(_))));
        other.join().unwrap();
    });
}
