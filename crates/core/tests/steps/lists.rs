//! The cost of lists: of thousands of ranges that one operation uses.

use super::*;
use crate::{
    source::{SourceList, Sources},
    sync::most_under_one_lock,
};

/// The most steps under one lock: a few for each of 256 ranges.
const MOST: u64 = 12 * 256;

#[test]
fn lists_hold_the_lock_for_a_few_hundred_steps_at_a_time() {
    let (table, lines, n) = (Table::new(), [Line::new(), Line::that_can_fail(true)], 10_000);
    most_under_one_lock();
    // Unused bytes, the same list again, one that can fail, and parts of segments.
    for (point, line, at) in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (3, 0, 100)] {
        let list = (0..n).map(|index| 2 * index * PIECE + at..(2 * index + 1) * PIECE + at);
        table.write(list, &lines[line], point);
        let most = most_under_one_lock();
        assert!(most <= MOST, "{most} steps under one lock, point {point} of line {line}");
    }
    table.submit((0..n).map(|index| piece(2 * index)), Access::Read, &lines[0], 4);
    let most = most_under_one_lock();
    assert!(most <= MOST, "{most} steps under one lock by reads");
}

#[test]
fn lists_are_released_in_a_few_steps_and_apart_from_each_other() {
    let (table, n) = (Table::new(), 1_000);
    let pieces = |first: usize| (0..n).map(move |index| piece(4 * index + first));
    let [one, other] = [0, 2].map(|first| table.claim(pieces(first), Access::Write).0);
    // A list of nothing ends alone.
    let (nothing, _) = table.claim((0..n).map(|at| at..at), Access::Write);
    table.hazards.withdraw_all(&nothing, &mut WakeList::default());
    let is_free = |range: &Range<usize>| {
        let view = table.hazards.try_open(range, Access::Write, None, Opening::View);
        let Ok(Attempt::Held(view)) = view else { return false };
        table.hazards.withdraw(range, view, &mut WakeList::default());
        true
    };
    let are_free = |list: &[Claimed<'_>]| list.iter().filter(|one| is_free(&one.range)).count();
    assert_eq!((are_free(&one), are_free(&other)), (0, 0));
    assert!((0..n).all(|index| is_free(&piece(2 * index + 1))), "the gaps are free");
    let before = counted();
    table.hazards.withdraw_all(&one, &mut WakeList::default());
    assert!(counted() - before <= 16, "{} steps", counted() - before);
    assert_eq!((are_free(&one), are_free(&other)), (n, 0));
    table.hazards.withdraw_all(&other, &mut WakeList::default());
    assert_eq!((are_free(&one), are_free(&other)), (n, n));
}

#[test]
fn list_that_is_blocked_holds_what_is_before_that() {
    let (table, n) = (Table::new(), 1_000);
    for blocked in [0, 1, 999] {
        let view = table.hazards.try_open(&piece(2 * blocked), Access::Read, None, Opening::View);
        let Ok(Attempt::Held(view)) = view else { unreachable!("nothing is held") };
        let claimed = |index| Claimed {
            buffer: &table.buffer,
            range: piece(2 * index),
            access: Access::Write,
            ticket: None,
        };
        let mut group: Vec<_> = (0..n).map(claimed).collect();
        let request = ClaimRequest { own: None, turn: None, inherits: false };
        assert!(table.hazards.claim(&mut group, &request, &mut None).is_err());
        assert_eq!(group.iter().position(|one| one.ticket.is_none()), Some(blocked));
        table.hazards.withdraw_all(&group, &mut WakeList::default());
        table.hazards.withdraw(&piece(2 * blocked), view, &mut WakeList::default());
    }
    // Nothing is left.
    let whole = 0..2 * n * PIECE;
    assert_eq!(table.claim([whole], Access::Write).1, 0);
}

#[test]
fn list_takes_each_source_of_its_pieces_about_once() {
    const N: usize = 1_000;
    // Pieces that two lists wrote in turn, both after the same uploads.
    let (table, uploads) = (Table::new(), [(); 50].map(|()| Line::that_can_fail(true)));
    let mut sources = SourceList::default();
    let place = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
    for line in &uploads {
        sources.add(&Fence::new(Arc::clone(line) as _, 1), (table.buffer.0.id(), place), piece(0));
    }
    let writers = [Line::new(), Line::that_can_fail(true)];
    for (first, line) in writers.iter().enumerate() {
        let fence = Fence::new(Arc::clone(line) as _, 1).with_sources(Sources::new(sources.clone(), None));
        let (claims, _) = table.claim((0..N).map(|index| piece(4 * index + 2 * first)), Access::Write);
        table.hazards.commit(&claims, &fence, Retained::default(), &mut WakeList::default());
    }
    let before = Arc::strong_count(&uploads[0]);
    let read = |index| Claimed {
        buffer: &table.buffer,
        range: piece(2 * index),
        access: Access::Read,
        ticket: None,
    };
    let mut group: Vec<_> = (0..2 * N).map(read).collect();
    let (request, mut earlier) = (ClaimRequest { own: None, turn: None, inherits: false }, None);
    assert!(matches!(table.hazards.claim(&mut group, &request, &mut earlier), Ok(Attempt::Held(()))));
    let each = Arc::strong_count(&uploads[0]) - before;
    assert!((1..=4).contains(&each), "each source {each} times");
}

#[test]
fn committed_lists_block_their_ranges_until_they_are_complete() {
    let n = 1_000;
    let pieces = |first: usize| (0..n).map(move |index| piece(2 * index + first));
    let lines = [Line::new(), Line::new()];
    let mut table = Table::new();
    table.submit(pieces(0), Access::Read, &lines[0], 1);
    let before = counted();
    table.write(pieces(1), &lines[1], 1);
    assert!(counted() - before <= 4 * n as u64, "{} steps", counted() - before);
    let opens = |table: &Table, range: &Range<usize>, access: Access| {
        let view = table.hazards.try_open(range, access, None, Opening::View);
        let Ok(Attempt::Held(view)) = view else { return false };
        table.hazards.withdraw(range, view, &mut WakeList::default());
        true
    };
    for index in [0, 500, n - 1] {
        assert!(opens(&table, &piece(2 * index), Access::Read));
        assert!(!opens(&table, &piece(2 * index), Access::Write));
        assert!(!opens(&table, &piece(2 * index + 1), Access::Read));
        assert_eq!(table.hazards.in_flight(&piece(2 * index)).map(|after| after.len()), Some(1));
    }
    assert!(opens(&table, &(2 * n * PIECE..usize::MAX), Access::Write));
    assert_eq!(table.hazards.outstanding().len(), 2);
    assert!(!table.hazards.renew(), "both are in flight");
    // Waited for, although its timeline does not tell.
    let fence = Fence::new(Arc::clone(&lines[1]) as Arc<dyn Timeline>, 1);
    table.hazards.forget(&piece(1), std::slice::from_ref(&fence));
    assert!(opens(&table, &piece(2 * n - 1), Access::Write));
    assert!(!table.hazards.renew(), "one is in flight");
    lines[0].reached.store(1, Ordering::SeqCst);
    assert!(table.hazards.outstanding().is_empty());
    // The next claim drops what it kept.
    let kept = Arc::strong_count(&lines[0]);
    table.claim([piece(1)], Access::Read);
    assert!(Arc::strong_count(&lines[0]) < kept);
    assert!(table.hazards.renew());
}

#[test]
fn list_replaces_those_of_the_same_ranges_and_keeps_no_complete_use() {
    let (table, n) = (Table::new(), 100);
    let [one, other, first] = [(); 3].map(|()| Line::new());
    let pieces = || (0..n).map(|index| piece(2 * index));
    let whole = 0..2 * n * PIECE;
    table.write([whole.clone()], &first, 1);
    first.reached.store(1, Ordering::SeqCst);
    for point in 1..200 {
        table.write(pieces(), &one, point);
    }
    assert_eq!(Arc::strong_count(&first), 1, "its write is complete, and the ranges are swept");
    assert_eq!(table.hazards.outstanding().len(), 1, "those of one timeline are one");
    // It comes after the first, so what comes after it need not.
    assert_eq!(table.write(pieces(), &other, 1), 1);
    assert_eq!((table.hazards.outstanding().len(), Arc::strong_count(&one)), (1, 1));
    assert_eq!(table.claim([whole], Access::Read).1, 1);
    // Readers do not follow each other.
    let table = Table::new();
    for line in [&one, &other] {
        table.submit(pieces(), Access::Read, line, 300);
    }
    assert_eq!(table.claim([piece(0)], Access::Write).1, 2);
}

#[test]
fn lists_are_kept_again_after_many_timelines_and_failures() {
    let (table, n) = (Table::new(), 100);
    let lines: Vec<_> = (0..40).map(|index| Line::that_can_fail(index % 2 == 0)).collect();
    for (index, line) in lines.iter().enumerate() {
        table.write([piece(index)], line, 1);
        line.reached.store(1, Ordering::SeqCst);
    }
    let view = table.hazards.try_open(&(0..usize::MAX), Access::Write, None, Opening::View);
    let Ok(Attempt::Held(view)) = view else { unreachable!("all is complete") };
    table.hazards.withdraw(&(0..usize::MAX), view, &mut WakeList::default());
    table.write((0..n).map(|index| piece(2 * index)), &Line::new(), 1);
    assert_eq!(table.hazards.outstanding().len(), 1, "it is one list");
}

#[test]
fn list_among_many_others_holds_the_lock_for_few_steps() {
    let (table, n) = (Table::new(), 1_000);
    let lines: Vec<_> = (0..80).map(|_| Line::new()).collect();
    let pieces = |first: usize| (0..n).map(move |index| piece(100 * index + first));
    for (first, line) in lines.iter().enumerate() {
        table.write(pieces(first), line, 1);
    }
    most_under_one_lock();
    assert_eq!(table.write(pieces(90), &lines[0], 2), 0);
    let most = most_under_one_lock();
    assert!(most <= MOST, "{most} steps under one lock");
}

#[test]
fn list_after_many_others_waits_for_each_of_them() {
    // More than are kept as lists.
    let (table, n, count) = (Table::new(), 100, 150);
    let lines: Vec<_> = (0..count).map(|_| Line::new()).collect();
    let pieces = |first: usize| (0..n).map(move |index| piece(2 * (count * index + first)));
    for (first, line) in lines.iter().enumerate() {
        assert_eq!(table.write(pieces(first), line, 1), 0, "apart from the others");
    }
    assert_eq!(table.claim([piece(2 * (count * 50 + 1))], Access::Read).1, 1);
    let all = (0..n * count).map(|index| piece(2 * index));
    assert_eq!(table.claim(all, Access::Read).1, count);
}

/// The uses of a byte that later ones may have to follow: line, point, and whether it writes.
type Uses = Vec<(usize, u64, bool)>;

#[test]
fn long_random_lists_are_ordered_byte_by_byte() {
    // Lists are kept as such, become segments, or both in turn.
    order_random_lists(false, false);
    order_random_lists(true, true);
    order_random_lists(true, false);
}

fn order_random_lists(can_fail: bool, always: bool) {
    const BYTES: usize = 2_000;
    let (table, lines) = (Table::new(), [Line::new(), Line::new(), Line::that_can_fail(can_fail)]);
    if always {
        table.write(std::iter::once(BYTES..BYTES + 1), &lines[2], u64::MAX);
    }
    let mut bytes: Vec<Uses> = vec![Uses::new(); BYTES];
    // Those that a later write came after.
    let mut covered = bytes.clone();
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for point in 1..=150 {
        let (line, keeps, only) = (random(lines.len()), random(4) == 0, random(3));
        // From a few ranges up to more than are committed under one lock.
        let (gap, length) = [(1, 2), (2, 3), (40, 5), (1, 60), (900, 900)][random(5)];
        let (mut group, mut at) = (Vec::new(), random(gap));
        while at < BYTES {
            let end = (at + 1 + random(length)).min(BYTES);
            let access = if only == 0 || only == 1 && random(2) == 0 { Access::Read } else { Access::Write };
            group.push(Claimed { buffer: &table.buffer, range: at..end, access, ticket: None });
            at = end + random(gap + 1);
        }
        let last_of = |bytes: &[Uses]| {
            let mut last = [0; 3];
            for Claimed { range, access, .. } in &group {
                for &(line, point, wrote) in bytes[range.clone()].iter().flatten() {
                    let conflicts = wrote || *access == Access::Write;
                    if conflicts && point > lines[line].reached() {
                        last[line] = last[line].max(point);
                    }
                }
            }
            last
        };
        let (least, most) = (last_of(&bytes), last_of(&covered));
        let (request, mut earlier) = (ClaimRequest { own: None, turn: None, inherits: false }, None);
        assert!(matches!(table.hazards.claim(&mut group, &request, &mut earlier), Ok(Attempt::Held(()))));
        let mut after = [0; 3];
        for fence in earlier.unwrap_or_default().after.iter() {
            let of = lines.iter().position(|line| line.id == fence.timeline().id()).unwrap();
            after[of] = after[of].max(fence.point());
        }
        for line in 0..3 {
            let most = if always { least[line] } else { most[line].max(least[line]) };
            let expected = least[line]..=most;
            assert!(expected.contains(&after[line]), "point {point}, {} ranges: {after:?}", group.len());
        }
        let fence = Fence::new(Arc::clone(&lines[line]) as Arc<dyn Timeline>, point);
        let retained = Retained { damage: keeps, ..Retained::default() };
        table.hazards.commit(&group, &fence, retained, &mut WakeList::default());
        for Claimed { range, access, .. } in group {
            for (uses, covered) in bytes[range.clone()].iter_mut().zip(&mut covered[range]) {
                if access == Access::Write {
                    covered.extend(uses.iter());
                    uses.retain(|&(line, _, wrote)| keeps && wrote && lines[line].can_fail);
                }
                uses.push((line, point, access == Access::Write));
            }
        }
        let done = random(lines.len());
        lines[done].reached.fetch_max(point.saturating_sub(random(30) as u64), Ordering::SeqCst);
    }
}
