//! Streams of bytes onto and off a device whose driver fails, on the software driver only.

use std::io::Cursor;

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, RawBuffer,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
    io::{Blocking, StreamError, StreamReport, read_from, write_to},
};
use transload_cuda_sim::harness::{self, TestDevice};

const INVALID_VALUE: u32 = 1;
const LEN: usize = 5000;

fn manager_over(test: &TestDevice) -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    manager
}

fn content() -> Vec<u8> {
    (0..LEN as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// Fills the buffer, then writes it to a `Vec`. Returns the outcomes, and the `Vec`.
fn stream(
    manager: &CrossBackendTransferManager,
    there: &RawBuffer,
) -> (Result<StreamReport, StreamError>, Result<StreamReport, StreamError>, Vec<u8>) {
    pollster::block_on(async {
        let source = Blocking::new(manager, Cursor::new(content()));
        let read = read_from(manager, source, there).chunk(1000).buffers(2).await;
        let mut sink = Blocking::new(manager, Vec::new());
        let written = write_to(manager, there, &mut sink).chunk(1000).buffers(2).await;
        (read, written, sink.into_inner().await.unwrap())
    })
}

/// The bytes that a stream says it moved. A failed one never says that it moved all.
fn moved(outcome: &Result<StreamReport, StreamError>) -> usize {
    let bytes = match outcome {
        Ok(report) => {
            assert_eq!(report.bytes, LEN as u64);
            report.bytes
        }
        Err(error) => {
            assert!(error.bytes < LEN as u64 && error.cause.kind() != ErrorKind::Io, "{error}");
            error.bytes
        }
    };
    bytes as usize
}

#[test]
fn every_driver_call_can_fail_and_what_was_moved_is_in_place() {
    let Some(healthy) = harness::device_with(|builder| builder) else { return };
    let manager = manager_over(&healthy);
    let there = manager.allocate(DeviceId::Cuda(healthy.ordinal()), MemoryKind::Device, LEN).unwrap();
    let before = healthy.sim().unwrap().calls();
    let (read, written, bytes) = stream(&manager, &there);
    assert_eq!((moved(&read), moved(&written)), (LEN, LEN));
    assert!(bytes == content());
    let calls = healthy.sim().unwrap().calls() - before;
    let (mut reads, mut writes) = (0, 0);
    for nth in 1..=calls {
        let Some(test) = harness::device_with(|builder| builder) else { return };
        let manager = manager_over(&test);
        let there = manager.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Device, LEN).unwrap();
        test.sim().unwrap().fail_call(None, nth, INVALID_VALUE);
        let (read, written, bytes) = stream(&manager, &there);
        (reads, writes) = (reads + u32::from(read.is_err()), writes + u32::from(written.is_err()));
        assert_eq!(bytes.len(), moved(&written), "call {nth}");
        // Of bytes that were not read, nothing is known.
        let both = moved(&read).min(bytes.len());
        let first = bytes[..both].iter().zip(&content()).position(|(a, b)| a != b);
        assert_eq!(first, None, "call {nth}: {read:?} {written:?}");

        // The same manager works on.
        let again = stream(&manager, &there);
        let (read, written, bytes) =
            if again.0.is_ok() && again.1.is_ok() { again } else { stream(&manager, &there) };
        assert_eq!((moved(&read), moved(&written)), (LEN, LEN), "call {nth}");
        assert!(bytes == content(), "call {nth}");
        drop(there);
        // A remaining fault is hit here; what could not be freed is still alive.
        let _ = (manager.drain(), manager.drain());
        let kept: u64 = manager.resource_counts().iter().map(|(_, counts)| counts.allocations).sum();
        assert!(kept <= 1, "call {nth}: {kept} allocations");
    }
    println!("{calls} calls: {reads} reads and {writes} writes failed");
    // A call for the word by which a small download ends may fail without loss, and the seed decides how often there is one.
    assert!(reads > 5 && writes > 2, "{reads} and {writes} of {calls}");
}
