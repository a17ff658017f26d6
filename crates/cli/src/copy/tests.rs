//! The pipeline over readers that a file system cannot be made to be.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use transload::{DeviceId, MemoryKind, Place, Runtime};

use super::*;

const PLACE: Place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);

fn invocation() -> Invocation {
    // A process has one driver for good: the first to ask decides for all tests of this binary.
    #[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
    transload_cuda_sim::install().unwrap();
    Invocation { runtime: Runtime::discover().unwrap(), json: true }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn pipeline(invocation: &Invocation, len: usize, chunk: u64) -> Pipeline<'_> {
    Pipeline::new(&invocation.runtime, PLACE, len, chunk, MemoryKind::Pageable).unwrap()
}

fn assert_empty(invocation: &Invocation) {
    invocation.runtime.drain().unwrap();
    for (backend, ledger) in invocation.runtime.manager().ledger() {
        assert!(ledger.is_empty(), "{backend}: {ledger}");
    }
}

#[test]
fn every_byte_arrives_whatever_the_chunk() {
    let invocation = invocation();
    let len = 100_003;
    for chunk in [1_000, 4_096, 99_999, 100_003, u64::MAX] {
        let mut source = Source::new(Cursor::new(content(len)), "f".to_owned(), len as u64);
        let mut pipeline = pipeline(&invocation, len, chunk);
        let progress = Progress::new(&invocation, source.len());
        let up = pipeline.send(&mut source, &progress).unwrap();
        assert_eq!(*pipeline.there().read().unwrap(), *content(len), "chunk {chunk}");
        let down = pipeline.receive(&mut source, &progress).unwrap();
        assert_eq!(up.chunks, (len as u64).div_ceil(chunk));
        assert_eq!(down.chunks, up.chunks);
        assert!(pipeline.ring().0 <= 4);
    }
    assert_empty(&invocation);
}

#[test]
fn a_byte_that_comes_back_wrong_is_found_and_named() {
    let invocation = invocation();
    let mut source = Source::new(Cursor::new(content(10_000)), "f".to_owned(), 10_000);
    let mut pipeline = pipeline(&invocation, 10_000, 1_000);
    let progress = Progress::new(&invocation, source.len());
    pipeline.send(&mut source, &progress).unwrap();
    pipeline.there().write().unwrap()[7_777] ^= 0x10;
    let failure = pipeline.receive(&mut source, &progress).unwrap_err();
    assert_eq!(failure.exit, Exit::Differs);
    assert!(failure.to_string().contains("offset 7777"), "{failure}");
    drop(pipeline);
    assert_empty(&invocation);
}

/// Ends early from the `n`-th pass on.
struct Shrinking {
    whole: Cursor<Vec<u8>>,
    passes: u32,
    from: u32,
    at: u64,
}

impl Read for Shrinking {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let left = self.at.saturating_sub(self.whole.position());
        let most = if self.passes >= self.from { piece.len().min(left as usize) } else { piece.len() };
        self.whole.read(&mut piece[..most])
    }
}

impl Seek for Shrinking {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.passes += 1;
        self.whole.seek(to)
    }
}

#[test]
fn a_file_that_shrinks_on_the_way_up_or_down_leaves_nothing_behind() {
    let invocation = invocation();
    for from in [1, 2] {
        let reader = Shrinking { whole: Cursor::new(content(10_000)), passes: 0, from, at: 6_543 };
        let mut source = Source::new(reader, "f".to_owned(), 10_000);
        let mut pipeline = pipeline(&invocation, 10_000, 1_000);
        let progress = Progress::new(&invocation, source.len());
        let outcome =
            pipeline.send(&mut source, &progress).and_then(|_| pipeline.receive(&mut source, &progress));
        let failure = outcome.unwrap_err();
        assert_eq!(failure.exit, Exit::Io);
        assert!(failure.to_string().contains("offset 6543 of 10000"), "{failure}");
        drop(pipeline);
        assert_empty(&invocation);
    }
}

#[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
#[test]
fn a_device_that_fails_midway_is_told_and_leaves_nothing_behind() {
    use transload_cuda_sim::SimDevice;

    const INVALID_VALUE: u32 = 1;
    let sim = SimDevice::builder().total_memory(1 << 20).build();
    let invocation = invocation();
    let place = Place::new(DeviceId::Cuda(sim.ordinal()), MemoryKind::Device);
    let mut source = Source::new(Cursor::new(content(10_000)), "f".to_owned(), 10_000);
    let mut pipeline = Pipeline::new(&invocation.runtime, place, 10_000, 1_000, MemoryKind::Pinned).unwrap();
    let progress = Progress::new(&invocation, source.len());
    sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 7, INVALID_VALUE);
    let failure = pipeline.send(&mut source, &progress).unwrap_err();
    assert_eq!(failure.exit, Exit::Device);
    drop(pipeline);
    assert_empty(&invocation);

    // The manager is as good as before.
    let mut pipeline = Pipeline::new(&invocation.runtime, place, 10_000, 1_000, MemoryKind::Pinned).unwrap();
    pipeline.send(&mut source, &progress).unwrap();
    pipeline.receive(&mut source, &progress).unwrap();
    drop(pipeline);
    assert_empty(&invocation);
}
