//! How the cost of a submission grows with what is in flight, counted in segments and uses looked at. The files under test are
//! included as they are.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]
#![allow(clippy::duplicate_mod, reason = "the lock is included with a flag that counts")]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "not all of what is included is used, or public"
)]

use std::{
    any::Any,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use transload_core::{
    BufferId, DeviceId, Error, ErrorKind, HostBytes, MemoryKind, Place, Result, TransferPath, catch_panic,
    mutant,
};

use crate::{
    hazard::{Access, Attempt, ClaimRequest, Claimed, Hazards, Opening, Retained, Ticket, WakeList, counted},
    queue::fence::{Fence, Timeline, TimelineId, next_timeline_id},
    raw_buffer::RawBuffer,
};

mod lists;
mod sync;

#[path = "../../src/queue/fence.rs"]
mod fence;
#[path = "../../src/hazard/mod.rs"]
mod hazard;
#[path = "../loom/raw_buffer.rs"]
mod raw_buffer;
#[path = "../../src/sync/mod.rs"]
mod real_sync;
#[path = "../../src/queue/source.rs"]
mod source;

/// The folders of the crate, as the included files name them.
mod queue {
    pub(crate) use crate::{fence, source};
}

const PIECE: usize = 4096;

struct Line {
    id: TimelineId,
    reached: AtomicU64,
    can_fail: bool,
}

impl Line {
    fn new() -> Arc<Self> {
        Self::that_can_fail(false)
    }

    fn that_can_fail(can_fail: bool) -> Arc<Self> {
        Arc::new(Self { id: next_timeline_id(), reached: AtomicU64::new(0), can_fail })
    }
}

// SAFETY: nothing of it touches memory.
unsafe impl Timeline for Line {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::SeqCst)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn can_fail(&self) -> bool {
        self.can_fail
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Table {
    hazards: Hazards,
    buffer: RawBuffer,
}

fn piece(index: usize) -> Range<usize> {
    index * PIECE..(index + 1) * PIECE
}

impl Table {
    fn new() -> Self {
        let mut owner = vec![0_u8; 16].into_boxed_slice();
        let address = NonNull::from(&mut *owner).cast();
        // SAFETY: the box owns the bytes, and does not move them when it is moved.
        let storage = unsafe { HostBytes::new(owner, address, 16, MemoryKind::Pinned, true) };
        let buffer = transload_core::RawBuffer::new(Box::new(storage), &Arc::default());
        Self { hazards: Hazards::with_fences(0..0, &[]), buffer: RawBuffer(buffer) }
    }

    /// Claims ranges in one pass. Returns how many fences they come after, too.
    fn claim(
        &self,
        ranges: impl IntoIterator<Item = Range<usize>>,
        access: Access,
    ) -> (Vec<Claimed<'_>>, usize) {
        let claimed = |range| Claimed { buffer: &self.buffer, range, access, ticket: None };
        let mut group: Vec<_> = ranges.into_iter().map(claimed).collect();
        let (request, mut earlier) = (ClaimRequest { own: None, turn: None, inherits: false }, None);
        assert!(matches!(self.hazards.claim(&mut group, &request, &mut earlier), Ok(Attempt::Held(()))));
        (group, earlier.unwrap_or_default().after.len())
    }

    /// Writes ranges as one operation. Returns how many fences it comes after.
    fn write(&self, ranges: impl IntoIterator<Item = Range<usize>>, line: &Arc<Line>, point: u64) -> usize {
        self.submit(ranges, Access::Write, line, point)
    }

    fn submit(
        &self,
        ranges: impl IntoIterator<Item = Range<usize>>,
        access: Access,
        line: &Arc<Line>,
        point: u64,
    ) -> usize {
        let (group, after) = self.claim(ranges, access);
        let fence = Fence::new(Arc::clone(line) as Arc<dyn Timeline>, point);
        self.hazards.commit(&group, &fence, Retained::default(), &mut WakeList::default());
        after
    }
}

#[test]
fn disjoint_ranges_in_flight_cost_is_constant() {
    for n in [250, 1_000, 8_000] {
        let (table, lines) = (Table::new(), [Line::new(), Line::new(), Line::new()]);
        let mut most = 0;
        let mut begun = counted();
        // Pieces far from each other follow each other: no order of addresses helps.
        for index in 0..n {
            let before = counted();
            assert_eq!(table.write([piece(index * 77 % n)], &lines[index % 3], index as u64 + 1), 0);
            most = most.max(counted() - before);
        }
        let each = (counted() - begun) as f64 / n as f64;
        assert!(most <= 160 && each <= 20.0, "{n} pieces: {each} steps each, {most} at most");
        // A second pass meets one piece each, and the entries of the first go.
        begun = counted();
        lines.iter().for_each(|line| line.reached.store(u64::MAX, Ordering::SeqCst));
        let fresh = Line::new();
        (0..n).for_each(|index| assert_eq!(table.write([piece(index)], &fresh, index as u64 + 1), 0));
        let each = (counted() - begun) as f64 / n as f64;
        assert!(each <= 20.0, "{n} pieces, second pass: {each} steps each");
    }
}

#[test]
fn table_of_one_time_ranges_stays_as_long_as_work_in_flight() {
    for far in [1, 77] {
        let (table, line, n) = (Table::new(), Line::new(), 20_011);
        for index in 0..n {
            table.write([piece(index * far % n)], &line, index as u64 + 1);
            line.reached.store((index as u64).saturating_sub(100), Ordering::SeqCst);
        }
        let (whole, before) = (0..n * PIECE, counted());
        table.write([whole], &Line::new(), 1);
        assert!(counted() - before <= 600, "{} segments", counted() - before);
    }
}

#[test]
fn complete_timelines_are_released_by_later_claims() {
    let table = Table::new();
    let mut lines = Vec::new();
    for index in 0..20 {
        let line = Line::new();
        table.write([piece(2 * index)], &line, 1);
        line.reached.store(1, Ordering::SeqCst);
        lines.push(Arc::downgrade(&line));
    }
    let kept = lines.iter().filter(|line| line.strong_count() > 0).count();
    assert!(kept <= 2, "{kept} of 20 are kept");
}

#[test]
fn timelines_outlasting_sweeps_are_released_by_later_claims() {
    for (pieces, in_flight, later) in [(16, 10, 1_000), (160, 1_000, 20_000)] {
        let (table, known) = (Table::new(), Line::new());
        let lines = [(); 16].map(|()| Line::new());
        table.write([piece(1000)], &known, 1);
        for index in 0..pieces {
            table.write([piece(2 * index)], &lines[index % 16], (index / 16 + 1) as u64);
        }
        let write = |count: u64| {
            let begun = counted();
            (0..count).for_each(|_| _ = table.write([piece(1000)], &known, 1));
            counted() - begun
        };
        let looked_at = write(in_flight);
        assert!(
            looked_at <= 3 * in_flight + 1_000,
            "{looked_at} segments for {in_flight} writes of another piece"
        );
        lines.iter().for_each(|line| line.reached.store(u64::MAX, Ordering::SeqCst));
        let lines = lines.map(|line| Arc::downgrade(&line));
        write(later);
        let kept = lines.iter().filter(|line| line.strong_count() > 0).count();
        assert_eq!(kept, 0, "{kept} of 16 are kept");
    }
}

#[test]
fn writes_wait_for_all_overlapping_work_in_flight() {
    const PIECES: usize = 1_500;
    let (table, lines) = (Table::new(), [(); 5].map(|()| Line::new()));
    // The last write of each piece, as line and point.
    let mut last = [None; PIECES];
    let mut random = 1_u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % limit
    };
    let mut start = 0;
    for point in 1..=20_000 {
        // Often the next pieces, or the same again.
        start = if below(4) == 0 { below(PIECES) } else { (start + below(3)) % PIECES };
        let (end, line) = ((start + 1 + below(3)).min(PIECES), below(lines.len()));
        let is_open = |(line, point): &(usize, u64)| lines[*line].reached.load(Ordering::SeqCst) < *point;
        let mut expected: Vec<usize> =
            last[start..end].iter().flatten().filter(|last| is_open(last)).map(|(line, _)| *line).collect();
        expected.sort_unstable();
        expected.dedup();
        let range = start * PIECE..end * PIECE;
        assert_eq!(
            table.write([range], &lines[line], point),
            expected.len(),
            "write {point}, of pieces {start} to {end}"
        );
        last[start..end].fill(Some((line, point)));
        if below(3) == 0 {
            let done = point.saturating_sub(below(2_000) as u64);
            lines[below(lines.len())].reached.fetch_max(done, Ordering::SeqCst);
        }
    }
}

#[test]
fn whole_use_waits_once_per_timeline_and_leaves_one_segment() {
    let (table, lines, whole) = (Table::new(), [Line::new(), Line::new(), Line::new()], 0..4_000 * PIECE);
    for index in 0..4_000 {
        table.write([piece(index)], &lines[index % 3], index as u64 + 1);
    }
    let all = Line::new();
    assert_eq!(table.write([whole.clone()], &all, 1), 3);
    let before = counted();
    assert_eq!(table.write([whole], &all, 2), 1);
    assert!(counted() - before <= 16, "{} segments", counted() - before);
}

#[test]
fn single_point_timelines_are_collected_in_linear_steps() {
    let table = Table::new();
    for index in 0..3_000 {
        table.write([piece(index)], &Line::new(), 1);
    }
    let (whole, before) = (0..3_000 * PIECE, counted());
    assert_eq!(table.write([whole], &Line::new(), 1), 3_000);
    assert!(counted() - before <= 4 * 3_000, "{} segments", counted() - before);
}

#[test]
fn thousands_of_loans_and_views_cost_a_claim_nothing() {
    let table = Table::new();
    let loan = |index| {
        let (claimed, _) = table.claim([piece(index)], Access::Write);
        (piece(index), table.hazards.lend(&piece(index), claimed[0].ticket.unwrap()))
    };
    let loans: Vec<_> = (0..3_000).map(loan).collect();
    for index in 3_000..6_000 {
        let view = table.hazards.try_open(&piece(index), Access::Write, None, Opening::View);
        assert!(matches!(view, Ok(Attempt::Held(_))));
    }
    let before = counted();
    table.write([piece(6_000)], &Line::new(), 1);
    assert!(counted() - before <= 16, "{} steps", counted() - before);
    for index in [1_500, 4_500] {
        assert!(table.hazards.try_open(&piece(index), Access::Read, None, Opening::View).is_err());
    }
    loans.iter().for_each(|(range, loan)| table.hazards.withdraw(range, *loan, &mut WakeList::default()));
    let lent = 0..3_000 * PIECE;
    assert!(matches!(
        table.hazards.try_open(&lent, Access::Write, None, Opening::View),
        Ok(Attempt::Held(_))
    ));
}

#[test]
fn a_batch_of_pieces_apart_takes_a_few_steps_each() {
    let (table, line) = (Table::new(), Line::new());
    for point in 1..=2 {
        let before = counted();
        table.write((0..2_000).map(|index| piece(2 * index)), &line, point);
        assert!(counted() - before <= 12 * 2_000, "{} segments", counted() - before);
    }
}

#[test]
fn table_is_swept_where_claims_come_in_pairs() {
    let (table, line) = (Table::new(), Line::new());
    for index in 0..4_000 {
        let point = index as u64 + 1;
        table.write([piece(2 * index), piece(100_000 - 2 * index)], &line, point);
        line.reached.store(point, Ordering::SeqCst);
    }
    let before = counted();
    let whole = 0..200_000 * PIECE;
    assert_eq!(table.write([whole], &Line::new(), 1), 0);
    assert!(counted() - before <= 512, "{} segments of 8000 were left", counted() - before);
}

#[test]
fn claim_over_many_held_ranges_is_linear() {
    for held in [1_000, 8_000] {
        let table = Table::new();
        for index in 0..held {
            let view = table.hazards.try_open(&piece(2 * index), Access::Read, None, Opening::View);
            assert!(matches!(view, Ok(Attempt::Held(_))));
        }
        let (whole, before) = (0..2 * held * PIECE, counted());
        assert!(matches!(
            table.hazards.try_open(&whole, Access::Read, None, Opening::View),
            Ok(Attempt::Held(_))
        ));
        let took = counted() - before;
        assert!(took <= 12 * held as u64, "{took} steps over {held} views");
        // The first conflicting view decides for all.
        let before = counted();
        assert!(table.hazards.try_open(&whole, Access::Write, None, Opening::View).is_err());
        assert!(counted() - before <= 16, "{} steps to be refused", counted() - before);
    }
}

#[test]
fn claim_checks_a_bounded_number_of_waiters() {
    let table = Table::new();
    let until = [Fence::new(Line::new() as Arc<dyn Timeline>, 1)];
    for _ in 0..1_000 {
        table.hazards.keep_turn(None, &piece(0), Access::Write, &until);
    }
    // Until the oldest is overtaken no more, and from then on.
    for claim in 0..20 {
        let (request, before) = (ClaimRequest { own: None, turn: None, inherits: false }, counted());
        let mut group =
            [Claimed { buffer: &table.buffer, range: piece(0), access: Access::Read, ticket: None }];
        let claimed = table.hazards.claim(&mut group, &request, &mut None);
        assert!(counted() - before <= 2 * 32 + 16, "{} steps for claim {claim}", counted() - before);
        let is_held = matches!(claimed, Ok(Attempt::Held(())));
        assert_eq!(is_held, claim < 16, "claim {claim}");
        let [one] = group;
        let withdraw = |ticket| table.hazards.withdraw(&one.range, ticket, &mut WakeList::default());
        one.ticket.into_iter().for_each(withdraw);
    }
}

#[test]
fn fallible_writes_of_same_bytes_cost_is_constant() {
    for by_one_timeline in [false, true] {
        for pieces in [1, 3] {
            let (table, line) = (Table::new(), Line::that_can_fail(true));
            let mut most = 0;
            for point in 1..=3_000 {
                let line = if by_one_timeline { &line } else { &Line::that_can_fail(true) };
                // Of all, as is every second one, or of a part of the rest: each piece in turn, and all again.
                let index = point as usize % (2 * pieces);
                let range =
                    if index < pieces || pieces == 1 { 0..pieces * PIECE } else { piece(index - pieces) };
                let before = counted();
                table.write([range], line, point);
                most = most.max(counted() - before);
            }
            assert!(most <= 64, "{most} steps, of {pieces} pieces, by one timeline: {by_one_timeline}");
        }
    }
}

#[test]
fn fallible_writes_leave_a_list_as_long_as_work_in_flight() {
    for in_flight in [0, 1, 50] {
        let (table, line) = (Table::new(), Line::that_can_fail(true));
        let begun = counted();
        for point in 1..=5_000 {
            table.write([piece(0)], &line, point);
            line.reached.fetch_max(point.saturating_sub(in_flight), Ordering::SeqCst);
        }
        let each = (counted() - begun) / 5_000;
        assert!(each <= 32, "{each} steps each, with {in_flight} in flight");
        let before = counted();
        table.hazards.assume_written(&piece(0));
        let left = counted() - before;
        assert!(left <= 8 * in_flight + 16, "{left} steps over what is left of {in_flight} in flight");
    }
}

#[test]
fn reads_of_same_bytes_cost_is_constant() {
    for pieces in [1, 3] {
        // Behind a write in flight that can fail.
        let (table, line) = (Table::new(), Line::that_can_fail(true));
        let whole = 0..pieces * PIECE;
        table.write([whole.clone()], &line, 1);
        let begun = counted();
        for index in 0..4_000 {
            let range = if index % 2 == 0 { whole.clone() } else { piece(index / 2 % pieces) };
            let after = table.submit([range], Access::Read, &Line::that_can_fail(true), 1);
            assert_eq!(after, 1);
        }
        let each = (counted() - begun) / 4_000;
        assert!(each <= 128, "{each} steps each, of {pieces} pieces");
        assert_eq!(table.write([piece(0)], &Line::new(), 1), 1 + 2_000 + 2_000_usize.div_ceil(pieces));
    }
}

#[test]
fn reads_leave_a_list_as_long_as_work_in_flight() {
    let (table, lines, n) = (Table::new(), [(); 40].map(|()| Line::new()), 8_000);
    // One that is not over while the others go on.
    table.submit([piece(0)], Access::Read, &Line::new(), 1);
    for point in 1..=n {
        let line = &lines[point % lines.len()];
        table.submit([piece(0)], Access::Read, line, point as u64);
        line.reached.store(point.saturating_sub(100) as u64, Ordering::SeqCst);
    }
    let before = counted();
    assert!(table.write([piece(0)], &Line::new(), 1) <= 1 + lines.len());
    assert!(counted() - before <= 2_000, "{} steps", counted() - before);
}
