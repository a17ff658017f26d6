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
fn claims_above_anothers_are_released_in_a_few_steps_each() {
    for backwards in [false, true] {
        let (table, n) = (Table::new(), 1_000);
        let (lower, _) = table.claim((0..n).map(|index| piece(2 * index)), Access::Write);
        let (mut upper, _) = table.claim((n..2 * n).map(|index| piece(2 * index)), Access::Write);
        if backwards {
            upper.reverse();
        }
        let (last, others) = upper.split_last().unwrap();
        let withdraw = |(range, ticket): &(Range<usize>, Ticket)| {
            table.hazards.withdraw(range, *ticket, &mut WakeList::default());
        };
        let before = counted();
        others.iter().for_each(withdraw);
        assert!(counted() - before <= 2 * n as u64, "{} steps", counted() - before);
        // Those released are free, and can be held again next to the others.
        let is_free = |range: &Range<usize>| {
            let view = table.hazards.try_open_view(range, Access::Write, None);
            matches!(view, Ok(Attempt::Held(_)))
        };
        assert!(others.iter().all(|(range, _)| is_free(range)));
        let still_held = lower.iter().chain([last]);
        assert!(still_held.clone().all(|(range, _)| !is_free(range)));
        still_held.for_each(withdraw);
        assert!(lower.iter().chain([last]).all(|(range, _)| is_free(range)));
    }
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
        let (tickets, _) = table.claim((0..N).map(|index| piece(4 * index + 2 * first)), Access::Write);
        let claims = tickets.iter().map(|(range, ticket)| (range, ticket));
        table.hazards.commit(claims, &fence, Retained::default(), &mut WakeList::default());
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
