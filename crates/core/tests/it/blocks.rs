//! Lists of blocks are refused by index, and claimed like their pairs.

use std::sync::atomic::Ordering;

use transload_core::{BlockList, BlockSide, ErrorKind, RawBuffer, Result, Timing, submit_blocks};

use crate::mock::{MockQueue, buffer};

const BLOCK: usize = 3;
const BLOCKS: usize = 40;

fn pool() -> RawBuffer {
    // Not at the beginning of its allocation.
    buffer(BLOCK * BLOCKS + 7).slice(5..BLOCK * BLOCKS + 6).unwrap()
}

fn list(pools: &[(RawBuffer, RawBuffer)], from: &[usize], to: &[usize]) -> Result<BlockList> {
    BlockList::new(pools.iter().map(|(src, dst)| (src, dst)), (from, to), BLOCK)
}

fn block(pool: &RawBuffer, index: usize) -> RawBuffer {
    pool.slice(index * BLOCK..(index + 1) * BLOCK).unwrap()
}

#[test]
fn blocks_alone_are_claimed_until_their_fence() {
    let pools = [(pool(), pool()), (pool(), pool())];
    let queue = MockQueue::new();
    for (from, to) in [([7, 8, 2, 39, 0], [11, 12, 30, 3, 39]), ([4, 5, 6, 7, 8], [0, 10, 20, 30, 1])] {
        let fence = submit_blocks(&queue, &list(&pools, &from, &to).unwrap(), Timing::Off).unwrap();
        for (src, dst) in &pools {
            for index in 0..BLOCKS {
                let is_busy = |pool| block(pool, index).try_write().is_err();
                assert_eq!(is_busy(src), from.contains(&index), "source block {index}");
                assert_eq!(is_busy(dst), to.contains(&index), "destination block {index}");
                assert!(block(src, index).try_read().is_ok(), "the sources are only read");
            }
        }
        queue.complete(fence.point());
        assert!(pools.iter().all(|(src, dst)| src.try_write().is_ok() && dst.try_write().is_ok()));
    }
}

#[test]
fn blocks_follow_conflicting_work_and_precede_later_work() {
    let pools = [(pool(), pool())];
    let (queue, other) = (MockQueue::new(), MockQueue::new());
    let blocks = list(&pools, &[1, 3, 5], &[2, 4, 6]).unwrap();
    let earlier = other.write(&block(&pools[0].0, 3)).unwrap();
    other.write(&block(&pools[0].1, 3)).unwrap();
    let fence = submit_blocks(&queue, &blocks, Timing::Off).unwrap();
    assert_eq!(queue.last_after(), [crate::mock::key(&earlier)], "block 3 is no destination");
    other.copy(&block(&pools[0].1, 4), &block(&buffer(BLOCK * 2), 1)).unwrap();
    assert_eq!(other.last_after(), [crate::mock::key(&fence)]);
    queue.complete(1);
    other.complete(3);
}

#[test]
fn refused_blocks_claim_nothing() {
    let pools = [(pool(), pool())];
    let blocks = list(&pools, &[1, 3, 5], &[2, 4, 6]).unwrap();
    let view = block(&pools[0].1, 4);
    let view = view.write().unwrap();
    let busy = submit_blocks(&MockQueue::new(), &blocks, Timing::Off).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    drop(view);
    let queue = MockQueue::new();
    queue.refuse.store(true, Ordering::SeqCst);
    assert_eq!(submit_blocks(&queue, &blocks, Timing::Off).unwrap_err().kind(), ErrorKind::Device);
    assert!(pools[0].0.try_write().is_ok() && pools[0].1.try_write().is_ok());
}

#[test]
fn pools_that_overlap_are_refused() {
    let (one, other) = (pool(), pool());
    let shifted = one.slice(BLOCK..one.len()).unwrap();
    let refused = |pools: &[(RawBuffer, RawBuffer)]| {
        let blocks = list(pools, &[1, 2], &[3, 1]).unwrap();
        let refused = submit_blocks(&MockQueue::new(), &blocks, Timing::Off);
        refused.err().map(|error| (error.kind(), error.to_string().starts_with("pools overlap")))
    };
    for pools in [
        vec![(one.clone(), one.clone())],
        vec![(one.clone(), shifted.clone())],
        vec![(one.clone(), other.clone()), (pool(), shifted)],
    ] {
        assert_eq!(refused(&pools), Some((ErrorKind::Unsupported, true)), "{pools:?}");
    }
    let half = BLOCK * BLOCKS / 2;
    let halves = (one.slice(half..half * 2).unwrap(), one.slice(0..half).unwrap());
    assert_eq!(refused(&[(pool(), other), halves]), None, "halves of one allocation are apart");
}

#[test]
fn wrong_index_is_named() {
    let pools = [(pool(), pool()), (pool(), pool().slice(0..10 * BLOCK).unwrap())];
    let refused = |from: &[usize], to: &[usize]| {
        let error = list(&pools, from, to).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = refused(&[1, 40], &[1, 2]);
    assert!(kind == ErrorKind::OutOfRange && text.contains("source block 40, at position 1"), "{text}");
    let (kind, text) = refused(&[1, 39], &[usize::MAX, 10]);
    assert!(
        kind == ErrorKind::OutOfRange && text.contains("position 0") && text.contains("10 blocks"),
        "{text}"
    );
    let (kind, text) = refused(&[1, 1, 2, 3], &[5, 2, 7, 2]);
    assert!(
        kind == ErrorKind::Overlap && text.contains("block 2 is given twice, at positions 1 and 3"),
        "{text}"
    );
    assert_eq!(refused(&[1], &[1, 2]).0, ErrorKind::InvalidArgument);
}

#[test]
fn parts_of_blocks_are_ranges_of_their_pairs_by_pool() {
    let pools = [(pool(), pool()), (pool(), pool()), (pool(), pool())];
    let blocks = list(&pools, &[9, 0, 7, 1], &[1, 39, 2, 0]).unwrap();
    let pairs = blocks.clone().into_pairs();
    let place = |buffer: &RawBuffer| (buffer.id(), buffer.offset());
    for (start, end) in (0..=13).flat_map(|start| (0..=13).map(move |end| (start, end))) {
        let parts = blocks.parts(start..end).flat_map(|((src, dst), from, to)| {
            from.iter().zip(to).map(|(from, to)| (place(&block(src, *from)), place(&block(dst, *to))))
        });
        let expected = pairs.iter().skip(start).take(end.saturating_sub(start));
        let expected: Vec<_> = expected.map(|(src, dst)| (place(src), place(dst))).collect();
        assert_eq!(parts.collect::<Vec<_>>(), expected, "{start}..{end}");
    }
    assert_eq!(BlockList::default().parts(0..1).count(), 0);
}

#[test]
fn blocks_in_the_order_of_a_side_keep_their_pairs() {
    let pools = [(pool(), pool())];
    let (from, to) = ([8, 3, 4, 3, 39], [5, 4, 6, 30, 0]);
    let blocks = list(&pools, &from, &to).unwrap();
    assert_eq!(
        blocks.stretches(BlockSide::Source),
        (4, 3),
        "3 and 4 follow each other, and 3 is there twice"
    );
    assert_eq!(blocks.stretches(BlockSide::Destination), (5, 3), "4, 5 and 6 do in order");
    let pairs = |of: &BlockList| -> Vec<_> {
        let (from, to) = of.indices();
        from.iter().copied().zip(to.iter().copied()).collect()
    };
    let by_source = blocks.sorted_by(BlockSide::Source);
    assert_eq!(pairs(&by_source), [(3, 4), (3, 30), (4, 6), (8, 5), (39, 0)]);
    assert_eq!(by_source.stretches(BlockSide::Source).0, 4);
    let by_destination = blocks.sorted_by(BlockSide::Destination);
    assert_eq!(pairs(&by_destination), [(39, 0), (3, 4), (8, 5), (4, 6), (3, 30)]);
    assert_eq!(by_destination.stretches(BlockSide::Destination).0, 3);
    // They claim the same.
    let queue = MockQueue::new();
    let fence = submit_blocks(&queue, &by_source, Timing::Off).unwrap();
    assert!(to.iter().all(|index| block(&pools[0].1, *index).try_write().is_err()));
    queue.complete(fence.point());
}

#[test]
fn stretches_of_blocks_go_on_from_pool_to_pool() {
    let whole = buffer(10 * BLOCK + 1);
    let layer =
        |first: usize, blocks: usize| whole.slice(1 + first * BLOCK..1 + (first + blocks) * BLOCK).unwrap();
    let stretches = |layers: [RawBuffer; 3], from: &[usize]| {
        let pools: Vec<_> = layers.into_iter().map(|layer| (layer, pool())).collect();
        list(&pools, from, &[0, 1, 2]).unwrap().stretches(BlockSide::Source)
    };
    let three = || [layer(0, 3), layer(3, 3), layer(6, 3)];
    assert_eq!(stretches(three(), &[0, 1, 2]), (1, 1));
    assert_eq!(stretches(three(), &[2, 0, 1]), (6, 1), "1 is not followed by 2 of the next");
    let [one, two, three] = three();
    assert_eq!(stretches([one, three, two], &[0, 1, 2]), (3, 1), "in another order");
    // The last block is left out.
    let four = [layer(0, 4), layer(4, 3), layer(7, 3)];
    assert_eq!(stretches(four, &[0, 1, 2]), (2, 1));
}

#[test]
fn pairs_of_blocks_are_slices_of_the_pools() {
    let pools = [(pool(), pool()), (pool(), pool())];
    let pairs = list(&pools, &[9, 0], &[1, 39]).unwrap().into_pairs();
    let expected = pools
        .iter()
        .flat_map(|(src, dst)| [(9, 1), (0, 39)].map(|(from, to)| (block(src, from), block(dst, to))));
    let places = |pairs: &[(RawBuffer, RawBuffer)]| -> Vec<_> {
        pairs.iter().map(|(src, dst)| (src.id(), src.offset(), dst.id(), dst.offset(), src.len())).collect()
    };
    assert_eq!(places(&pairs), places(&expected.collect::<Vec<_>>()));
}
