//! What a set of operations uses.

use std::ops::Range;

use transload_core::{Access, Operation, Pattern, RawBuffer, merge_uses, merged_uses};

use crate::mock::buffer;

fn shown(uses: &[(RawBuffer, Access)], of: &RawBuffer) -> Vec<(usize, usize, Access)> {
    let mine = uses.iter().filter(|(buffer, _)| buffer.id() == of.id());
    mine.map(|(buffer, access)| (buffer.offset(), buffer.len(), *access)).collect()
}

#[test]
fn merged_uses_write_where_any_use_writes() {
    let (a, b) = (buffer(100), buffer(100));
    let (low, high) = (a.slice(..60).unwrap(), a.slice(40..).unwrap());
    let uses = merged_uses(&[
        Operation::Copy { src: &low, dst: &b.slice(..60).unwrap() },
        Operation::Fill { dst: &high, pattern: Pattern::U8(1) },
    ]);
    assert_eq!(shown(&uses, &a), [(0, 40, Access::Read), (40, 60, Access::Write)]);
    assert_eq!(shown(&uses, &b), [(0, 60, Access::Write)]);
}

#[test]
fn merged_uses_join_neighbours_and_keep_gaps() {
    let a = buffer(100);
    let part = |range: Range<usize>| a.slice(range).unwrap();
    let (one, two, three, none) = (part(0..10), part(10..20), part(30..40), part(50..50));
    let uses = merge_uses(&[
        (&two, Access::Read),
        (&one, Access::Read),
        (&one, Access::Read),
        (&three, Access::Write),
        (&none, Access::Write),
    ]);
    assert_eq!(shown(&uses, &a), [(0, 20, Access::Read), (30, 10, Access::Write)]);
}

#[test]
fn merged_uses_never_overlap() {
    let a = buffer(64);
    let mut state = 7_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for _ in 0..200 {
        let asked: Vec<_> = (0..draw(9))
            .map(|_| {
                let from = draw(64);
                let to = from + draw(65 - from);
                (a.slice(from..to).unwrap(), if draw(2) == 0 { Access::Read } else { Access::Write })
            })
            .collect();
        let borrowed: Vec<_> = asked.iter().map(|(buffer, access)| (buffer, *access)).collect();
        let merged = merge_uses(&borrowed);
        for byte in 0..64 {
            let at = |uses: &[(RawBuffer, Access)]| -> Vec<Access> {
                let covering = uses
                    .iter()
                    .filter(|(buffer, _)| (buffer.offset()..buffer.offset() + buffer.len()).contains(&byte));
                covering.map(|(_, access)| *access).collect()
            };
            let (wanted, told) = (at(&asked), at(&merged));
            assert!(told.len() <= 1 && told.is_empty() == wanted.is_empty());
            assert_eq!(told.contains(&Access::Write), wanted.contains(&Access::Write), "byte {byte}");
        }
    }
}
