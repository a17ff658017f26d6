//! Failures of lists, and lists over failed work.

use transload_core::{Operation, RawBuffer, Timing, submit};

use crate::{
    failures::{assert_source_failed, damaged},
    mock::{MockQueue, buffer},
};

/// Pairs of one byte of each buffer, with gaps.
fn list(src: &RawBuffer, dst: &RawBuffer) -> Vec<(RawBuffer, RawBuffer)> {
    let piece = |of: &RawBuffer, at: usize| of.slice(at..at + 1).unwrap();
    (0..32).map(|index| (piece(src, 2 * index), piece(dst, 2 * index))).collect()
}

#[test]
fn list_repairs_what_it_writes_and_damages_it_if_it_fails() {
    let (_, dst) = damaged();
    let (stream, host, src) = (MockQueue::new(), MockQueue::failing(), buffer(64));
    let pairs = list(&src, &dst);
    submit(&stream, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    stream.complete(1);
    for (index, (_, written)) in pairs.iter().enumerate() {
        drop(written.read().unwrap());
        let gap = dst.slice(2 * index + 1..2 * index + 2).unwrap();
        assert_source_failed(gap.read().map(drop), "disk on fire");
    }
    let intact = buffer(64);
    let pairs = list(&src, &intact);
    submit(&host, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    host.fail(1, "disk on fire");
    for (index, (_, written)) in pairs.iter().enumerate() {
        assert_source_failed(written.read().map(drop), "disk on fire");
        drop(intact.slice(2 * index + 1..2 * index + 2).unwrap().read().unwrap());
    }
}
