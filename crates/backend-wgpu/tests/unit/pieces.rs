//! Which lists a shader copies.

use super::{FEWEST, LONGEST, MOST_PIECES, Region, entries, fits, spirv};
use crate::setup;

fn regions(count: usize, size: u64) -> Vec<Region> {
    let region = |index: u64| Region { src_offset: index * size, dst_offset: (index + 1) * size, size };
    (0..count as u64).map(region).collect()
}

#[test]
fn shader_is_valid() {
    assert!(!spirv().unwrap().is_empty());
}

#[test]
fn wgpus_queue_has_the_shader_and_queues_that_only_copy_have_not() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    assert!(state.queue.copies_lists());
    assert!(!state.copiers.iter().any(|line| line.queue.copies_lists()));
}

#[test]
fn short_lists_long_pieces_and_odd_bytes_are_left_to_copy_commands() {
    assert!(fits(&regions(FEWEST, 4)) && fits(&regions(FEWEST, LONGEST)));
    assert!(fits(&regions(MOST_PIECES, 4)) && !fits(&regions(MOST_PIECES + 1, 4)));
    assert!(!fits(&regions(FEWEST - 1, 4)) && !fits(&regions(FEWEST, LONGEST + 4)));
    for odd in [(1, 0, 0), (0, 2, 0), (0, 0, 3)] {
        let mut regions = regions(FEWEST, 64);
        let last = regions.last_mut().unwrap();
        (last.src_offset, last.dst_offset, last.size) =
            (last.src_offset + odd.0, last.dst_offset + odd.1, last.size - odd.2);
        assert!(!fits(&regions), "{odd:?}");
    }
}

#[test]
fn entries_are_in_words() {
    let entries: Vec<_> = entries(&regions(2, 12)).collect();
    assert_eq!(entries, [[0, 3, 3, 0], [3, 6, 3, 0]]);
}
