//! Which lists a shader copies.

use transload_core::{Backend as _, MemoryKind, Operation, Pattern, StreamPriority, Timing, submit};

use super::{
    super::{faults, queue::WgpuQueue},
    FEWEST, LONG, LONGEST, MOST_PIECES, Region, Shape, Unit, entries, shape_of, spirv,
};
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
    let fits = |regions: &[Region]| shape_of(regions, false).is_some();
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
fn long_copies_within_a_gpu_are_cut_into_pieces() {
    let of = |size, is_local| shape_of(&regions(1, size), is_local);
    assert_eq!(of(LONG, true), Some(Shape::Long(Unit::FourWords)));
    assert_eq!(of(LONG + 4, true), Some(Shape::Long(Unit::Word)));
    assert_eq!((of(LONG, false), of(LONG - 16, true), of(LONG + 2, true)), (None, None, None));
    assert_eq!(shape_of(&regions(FEWEST, 64), true), Some(Shape::List(Unit::FourWords)));
    assert_eq!(shape_of(&[regions(1, LONG), regions(1, 4)].concat(), true), None);
    // Vulkan has at least 65,535 workgroups in a dispatch, and buffers of up to 4 GiB are bound.
    let most = LONGEST * MOST_PIECES as u64;
    assert_eq!([most, most + 4].map(|size| of(size, true).is_some()), [true, false]);
}

#[test]
fn long_copies_within_the_device_arrive_by_the_shader_with_no_byte_beside() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let bytes = LONG as usize + 8 * LONGEST as usize;
    let allocate = |kind| backend.allocate(state.id(), kind, bytes).unwrap();
    let (host, src, dst, back) = (
        allocate(MemoryKind::Pinned),
        allocate(MemoryKind::Device),
        allocate(MemoryKind::Device),
        allocate(MemoryKind::Pinned),
    );
    let content: Vec<u8> = (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    host.write().unwrap().copy_from_slice(&content);
    let queue = WgpuQueue::new(&state, &state.wgpu, StreamPriority::Normal);
    let run = |operation: &Operation<'_>| submit(&queue, operation, Timing::Off).unwrap().wait().unwrap();
    run(&Operation::Copy { src: &host, dst: &src });
    for (from, to, length) in
        [(0, 0, bytes), (32, 16, LONG as usize), (4, 12, LONG as usize + 4), (1, 2, LONG as usize + 3)]
    {
        run(&Operation::Fill { dst: &dst, pattern: Pattern::U8(0xEE) });
        let copies = faults::copies_of_this_thread();
        let (part, there) = (src.slice(from..from + length).unwrap(), dst.slice(to..to + length).unwrap());
        run(&Operation::Copy { src: &part, dst: &there });
        let copies = faults::copies_of_this_thread() - copies;
        assert_eq!(copies, usize::from(from == 1), "{length} bytes from {from} to {to}");
        run(&Operation::Copy { src: &dst, dst: &back });
        let seen = back.read().unwrap();
        assert!(seen[to..to + length] == content[from..from + length], "{length} bytes from {from} to {to}");
        assert!(seen[..to].iter().chain(&seen[to + length..]).all(|byte| *byte == 0xEE), "{from} to {to}");
    }
}

#[test]
fn entries_are_in_words() {
    let entries: Vec<_> = entries(&regions(2, 12), Unit::Word).collect();
    assert_eq!(entries, [[0, 3, 3, 0], [3, 6, 3, 0]]);
}
