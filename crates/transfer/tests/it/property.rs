//! Random transfers between several buffers, compared with vectors.

use proptest::prelude::*;
use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer};
use transload_transfer::CrossBackendTransferManager;

use crate::{MOCK, Mock, beside_cpu, is_at_rest, with};

const BUFFERS: usize = 4;
const LEN: usize = 200;

#[derive(Clone, Copy, Debug)]
struct Move {
    src: usize,
    dst: usize,
    src_offset: usize,
    dst_offset: usize,
    size: usize,
    /// 0: waited for at once; 1: at the end; 2: dropped.
    end: u8,
}

prop_compose! {
    fn a_move()(
        src in 0..BUFFERS,
        dst in 0..BUFFERS,
        src_offset in 0..LEN + 20,
        dst_offset in 0..LEN + 20,
        size in 0..LEN / 2,
        end in 0..3_u8,
    ) -> Move {
        Move { src, dst, src_offset, dst_offset, size, end }
    }
}

/// The expected result, and the expected bytes.
fn apply(model: &mut [Vec<u8>], step: Move) -> Option<ErrorKind> {
    let Move { src, dst, src_offset, dst_offset, size, .. } = step;
    if size == 0 {
        return Some(ErrorKind::InvalidArgument);
    }
    if src_offset + size > LEN || dst_offset + size > LEN {
        return Some(ErrorKind::OutOfRange);
    }
    if src == dst && src_offset.abs_diff(dst_offset) < size {
        return Some(ErrorKind::Overlap);
    }
    let moved = model[src][src_offset..][..size].to_vec();
    model[dst][dst_offset..][..size].copy_from_slice(&moved);
    None
}

fn do_what_copies_of_vectors_do(
    manager: &CrossBackendTransferManager,
    buffers: [RawBuffer; BUFFERS],
    steps: Vec<Move>,
) -> Result<(), TestCaseError> {
    let mut model: Vec<Vec<u8>> =
        (0..BUFFERS).map(|index| (0..LEN).map(|at| (index * 61 + at * 7) as u8).collect()).collect();
    for (buffer, content) in buffers.iter().zip(&model) {
        buffer.write().unwrap().copy_from_slice(content);
    }
    let mut pending = Vec::new();
    for step in steps {
        let (src, dst) = (&buffers[step.src], &buffers[step.dst]);
        let transfer = manager.transfer_buffer(src, dst, step.src_offset, step.dst_offset, step.size);
        let expected = apply(&mut model, step);
        prop_assert_eq!(transfer.refusal().map(|error| error.kind()), expected);
        match step.end {
            _ if expected.is_some() => drop(transfer),
            0 => drop(transfer.wait().unwrap()),
            1 => pending.push(transfer),
            _ => drop(transfer),
        }
    }
    for transfer in pending {
        transfer.wait().unwrap();
    }
    for (buffer, content) in buffers.iter().zip(&model) {
        prop_assert_eq!(&*buffer.read().unwrap(), content.as_slice());
    }
    drop(buffers);
    prop_assert!(is_at_rest(manager));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_transfers_do_what_copies_of_vectors_do(steps in prop::collection::vec(a_move(), 1..60)) {
        let (manager, _) = with(Mock::default());
        let kinds = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified];
        let buffers = kinds.map(|kind| manager.allocate_for(MOCK, kind, LEN).unwrap());
        do_what_copies_of_vectors_do(&manager, buffers, steps)?;
    }

    #[test]
    fn random_transfers_across_backends_do_so_too(steps in prop::collection::vec(a_move(), 1..60)) {
        let (manager, _) = beside_cpu();
        let places = [(DeviceId::Cpu, MemoryKind::Pageable), (MOCK, MemoryKind::Unified)];
        let buffers: [_; BUFFERS] = std::array::from_fn(|index| {
            let (device, kind) = places[index % 2];
            manager.allocate(device, kind, LEN).unwrap()
        });
        do_what_copies_of_vectors_do(&manager, buffers, steps)?;
    }
}
