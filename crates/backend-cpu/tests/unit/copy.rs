//! How a copy or a fill is cut among workers.

use transload_core::{Backend, DeviceId, MemoryKind};

use super::*;
use crate::CpuBackend;

#[test]
fn pieces_cover_all_employ_all_and_large_ones_are_huge_pages() {
    let backend = CpuBackend::new().unwrap();
    for bytes in [4 << 20, (16 << 20) + 3, 100 << 20] {
        let dst = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
        let fill = Operation::Fill { dst: &dst, pattern: Pattern::U8(0) };
        for workers in [1, 8, 16, 1024] {
            let partition = Partition::new(&fill, workers);
            let grain = if bytes / workers >= 2 << 20 { 2 << 20 } else { 64 << 10 };
            assert!(partition.pieces() >= workers.min(bytes >> 19), "{bytes} among {workers}");
            let mut end = 0;
            for piece in (0..partition.pieces()).map_while(|index| partition.piece(index)) {
                assert!(piece.start == end && piece.start.is_multiple_of(grain), "{bytes}: {piece:?}");
                end = piece.end;
            }
            assert_eq!((end, partition.piece(partition.pieces())), (bytes, None));
        }
    }
}
