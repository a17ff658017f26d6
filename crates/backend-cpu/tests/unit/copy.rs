//! How a copy or a fill is cut among workers, and stores.

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

#[test]
fn operations_stream_from_the_size_of_the_whole_on() {
    let backend = CpuBackend::new().unwrap();
    let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096).unwrap();
    let (src, dst) = (allocate(), allocate());
    let half = |buffer: &RawBuffer, at: usize| buffer.slice(at..at + 2048).unwrap();
    let pairs = [0, 2048].map(|at| (half(&src, at), half(&dst, at)));
    let rows = Pitched::new(1024, 4, 1024, 1024);
    for operation in [
        Operation::Copy { src: &src, dst: &dst },
        Operation::CopyPitched { src: &src, dst: &dst, rows },
        Operation::CopyBatch { pairs: &pairs },
    ] {
        let stores = [4095, 4096, 4097].map(|from| Stores::of(&operation, from));
        assert_eq!(stores, [Stores::Streaming, Stores::Streaming, Stores::Cached], "{operation:?}");
    }
}
