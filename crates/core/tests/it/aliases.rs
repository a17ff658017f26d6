//! An alias has the uses of its original, and each keeps the memory.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{ErrorKind, MemoryKind, Operation, Place, RawBuffer, Reclaimer, Timing, submit};

use crate::mock::{ALIASING, DEVICE, MockQueue, alias, buffer, key, memory, storage_at};

#[test]
fn work_on_an_alias_conflicts_with_that_on_its_original() {
    let (queue, other) = (MockQueue::new(), MockQueue::on(ALIASING));
    let original = buffer(100);
    let (alias, _) = alias(&original, &Arc::default());
    assert_eq!((original.id(), original.place().device), (alias.id(), DEVICE));
    assert_eq!(alias.place(), Place::new(ALIASING, original.place().kind));

    let written = queue.write(&original.slice(..50).unwrap()).unwrap();
    other.write(&alias.slice(50..).unwrap()).unwrap();
    assert_eq!(other.last_after(), []);
    let again = other.write(&alias.slice(40..50).unwrap()).unwrap();
    assert_eq!(other.last_after(), [key(&written)]);
    queue.write(&original.slice(45..46).unwrap()).unwrap();
    assert_eq!(queue.last_after(), [key(&again)]);
    queue.complete(2);
    other.complete(2);

    for (viewed, used) in [(&original, &alias), (&alias, &original)] {
        let view = viewed.read().unwrap();
        assert_eq!(queue.write(used).unwrap_err().kind(), ErrorKind::Busy);
        drop(view);
        queue.write(used).unwrap();
        assert_eq!(viewed.try_read().unwrap_err().kind(), ErrorKind::Busy);
        queue.complete(queue.count());
    }
    assert_eq!(original.uses(), alias.uses());
}

#[test]
fn bytes_of_an_alias_are_those_of_its_original() {
    let original = buffer(100);
    let (alias, _) = alias(&original.slice(10..90).unwrap(), &Arc::default());
    assert_eq!((alias.offset(), alias.len(), alias.allocation_len()), (10, 80, 100));
    let part = alias.slice(5..25).unwrap();
    let back = part.alias_of().unwrap();
    assert!(back.shares_allocation(&original) && !back.shares_allocation(&part) && back.overlaps(&part));
    assert_eq!((back.offset(), back.len()), (15, 20));
    assert!(original.alias_of().is_none());

    let queue = MockQueue::new();
    let elsewhere = original.slice(50..70).unwrap();
    let pairs = |from: &RawBuffer, to: &RawBuffer| [(from.clone(), to.clone())];
    let batch = |pairs: &[_]| submit(&queue, &Operation::CopyBatch { pairs }, Timing::Off);
    queue.copy(&part, &elsewhere).unwrap();
    batch(&pairs(&part, &elsewhere)).unwrap();
    assert_eq!(queue.copy(&part, &back).unwrap_err().kind(), ErrorKind::Overlap);
    assert_eq!(batch(&pairs(&part, &back)).unwrap_err().kind(), ErrorKind::Overlap);
    // Each is a part of a list of its own, and both of one table.
    let pairs = [pairs(&part, &buffer(20)), pairs(&buffer(20), &back)].concat();
    assert_eq!(batch(&pairs).unwrap_err().kind(), ErrorKind::Overlap);

    let (short, _) = storage_at(Place::new(ALIASING, MemoryKind::Pageable), 99, true);
    let refused = RawBuffer::new_alias(Box::new(short), &Arc::default(), &original).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}

#[test]
fn alias_keeps_the_memory_until_both_are_dropped() {
    let reclaimers = [(); 2].map(|()| Arc::new(Reclaimer::new()));
    for alias_first in [true, false] {
        for in_flight in [false, true] {
            let (original, freed) = memory(&reclaimers[0], MemoryKind::Pageable, 100, true);
            let (alias, alias_freed) = alias(&original, &reclaimers[1]);
            let queue = MockQueue::new();
            if in_flight {
                queue.write(&alias).unwrap();
            }
            let [first, last] = if alias_first { [alias, original] } else { [original, alias] };
            drop(first);
            assert!(!freed.load(Ordering::SeqCst));
            assert_eq!(alias_freed.load(Ordering::SeqCst), alias_first && !in_flight);
            drop(last);
            assert_eq!(freed.load(Ordering::SeqCst), !in_flight);
            assert_eq!(alias_freed.load(Ordering::SeqCst), !in_flight);
            queue.complete(queue.count());
            reclaimers.iter().for_each(|reclaimer| reclaimer.drain().unwrap());
            assert!(freed.load(Ordering::SeqCst) && alias_freed.load(Ordering::SeqCst));
        }
    }
}
