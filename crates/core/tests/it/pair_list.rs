//! A list of pairs keeps its buffers alive, and its parts are slices of them.

use transload_core::{ErrorKind, PairList, RawBuffer};

use crate::mock::buffer;

#[test]
fn pairs_are_slices_of_their_buffers() {
    let (from, to) = (buffer(64), buffer(32));
    let [from, to] = [from.slice(8..64).unwrap(), to.slice(4..32).unwrap()];
    let mut list = PairList::with_capacity(1);
    list.add((&from, &to), 4, [(0, 24), (52, 0)]).unwrap();
    list.add((&to, &from), 0, [(28, 56)]).unwrap();
    assert_eq!(list.clone().len(), 3);
    for list in [&list.clone(), &list] {
        let parts: Vec<_> = list.iter().map(|(src, dst)| (src.offset(), dst.offset(), src.len())).collect();
        assert_eq!(parts, [(8, 28, 4), (60, 4, 4), (32, 64, 0)]);
        assert!(list[0].0.shares_allocation(&from) && list[0].1.shares_allocation(&to));
    }
}

#[test]
fn list_beyond_all_memory_is_out_of_memory() {
    for pairs in [usize::MAX, usize::MAX / 64] {
        assert_eq!(PairList::try_with_capacity(pairs).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
    assert!(PairList::try_with_capacity(2).unwrap().is_empty());
}

#[test]
fn part_beyond_its_buffer_is_out_of_range() {
    let (from, to) = (buffer(64), buffer(32));
    let mut list = PairList::default();
    let cases = [(61, 0, 4), (0, 29, 4), (usize::MAX, 0, 4), (0, usize::MAX - 1, 4), (0, 0, 33), (0, 33, 0)];
    for (at, (src, dst, bytes)) in cases.into_iter().enumerate() {
        let refused =
            list.add((&from, &to), bytes, [(0, 0), (src, dst)].into_iter().skip(usize::from(bytes > 32)));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfRange, "case {at}");
    }
    assert_eq!(list.len(), 5, "those before the part are added");
}

#[test]
fn list_keeps_its_buffers_and_only_as_long_as_it_lives() {
    let (from, to) = (buffer(64), buffer(64));
    let weak = [from.downgrade(), to.downgrade()];
    let are_alive = || weak.iter().all(|buffer| buffer.upgrade().is_some());
    let mut list = PairList::default();
    list.add((&from, &to), 8, [(0, 0)]).unwrap();
    list.add((&from, &to), 8, [(8, 16)]).unwrap();
    list.add((&to, &from), 8, [(8, 16)]).unwrap();
    drop((from, to));
    assert!(are_alive(), "the list keeps them");
    let other = list.clone();
    drop(list);
    assert!(are_alive(), "its clone keeps them");
    // An element that is cloned is a reference like any other.
    let pair = other[1].clone();
    drop(other);
    assert!(are_alive(), "the clone of a pair keeps them");
    drop(pair);
    assert!(weak.iter().all(|buffer| buffer.upgrade().is_none()));
}

#[test]
fn added_pairs_are_as_they_were_and_keep_every_allocation() {
    let buffers: Vec<_> = (0..4).map(|_| buffer(64)).collect();
    let weak: Vec<_> = buffers.iter().map(RawBuffer::downgrade).collect();
    let pair = |src: usize, dst: usize, at: usize| {
        (buffers[src].slice(at..at + 8).unwrap(), buffers[dst].slice(2 * at..2 * at + 8).unwrap())
    };
    let pairs = [pair(0, 1, 0), pair(0, 1, 8), pair(2, 1, 16), pair(2, 3, 24)];
    let mut list = PairList::default();
    list.extend_from_slice(&pairs[..1]);
    list.extend_from_slice(&pairs[1..]);
    let parts = |pairs: &[(RawBuffer, RawBuffer)]| -> Vec<_> {
        let part = |buffer: &RawBuffer| (buffer.id(), buffer.offset(), buffer.len());
        pairs.iter().map(|(src, dst)| (part(src), part(dst))).collect()
    };
    assert_eq!(parts(&list), parts(&pairs));
    drop((pairs, buffers));
    assert!(weak.iter().all(|buffer| buffer.upgrade().is_some()), "the list keeps them");
    drop(list);
    assert!(weak.iter().all(|buffer| buffer.upgrade().is_none()));
}
