//! Strided copies: the bytes of a plain loop over all elements, as few and long rows as both sides allow, and what is refused.

use std::future::IntoFuture;

use proptest::prelude::*;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Access, DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, StreamPriority, TransferMethod, TryLockResult,
};
use transload_transfer::{CrossBackendTransferManager, StridedLayout};

use crate::{
    MOCK, Mock, beside_cpu, is_at_rest,
    mock::{bytes, read_only, set_bytes},
    with,
};

fn on_host() -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager
}

fn pageable(manager: &CrossBackendTransferManager, len: usize) -> RawBuffer {
    manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, len).unwrap()
}

/// A layout as numbers: offset, bytes of a run, and count and stride of each dimension.
type Plain = (usize, usize, Vec<(usize, usize)>);

fn layout((offset, run, dimensions): &Plain) -> StridedLayout {
    let layout = StridedLayout::new(*run).at(*offset);
    dimensions.iter().fold(layout, |layout, (count, stride)| layout.repeat(*count, *stride))
}

/// Returns where each run begins, in the order of the indices.
fn starts((offset, _, dimensions): &Plain) -> Vec<usize> {
    dimensions.iter().fold(vec![*offset], |starts, (count, stride)| {
        (0..*count)
            .flat_map(|index| starts.iter().map(move |start| start + index * stride).collect::<Vec<_>>())
            .collect()
    })
}

fn len_of(plain: &Plain) -> usize {
    starts(plain).into_iter().max().unwrap() + plain.1
}

/// Layouts of one shape, of which the destination's runs do not overlap; the source's may.
fn shapes() -> impl Strategy<Value = (Plain, Plain)> {
    let dimension = (1_usize..5, 0_usize..40, 0_usize..3);
    (1_usize..9, prop::collection::vec(dimension, 0..4), (0_usize..5, 0_usize..5), any::<bool>(), any::<u8>())
        .prop_map(|(run, dimensions, (from, to), dense, order)| {
            let (mut src, mut dst, mut extent) = (Vec::new(), Vec::new(), run);
            for (count, stride, gap) in dimensions {
                src.push((count, if dense { extent } else { stride }));
                dst.push((count, extent + if dense { 0 } else { gap }));
                extent = dst.last().map_or(0, |(count, stride)| count * stride);
            }
            if order % 3 == 1 {
                src.reverse();
                dst.reverse();
            }
            ((from, run, src), (to, run, dst))
        })
}

/// Copies by one layout to another, and checks every byte of the destination.
fn check(manager: &CrossBackendTransferManager, from: &Plain, to: &Plain, awaited: bool) {
    const GAP: u8 = 0xEE;
    let content: Vec<u8> = (0..len_of(from)).map(|index| (index % 251) as u8).collect();
    let (src, dst) = (pageable(manager, content.len()), pageable(manager, len_of(to) + 3));
    src.write().unwrap().copy_from_slice(&content);
    dst.write().unwrap().fill(GAP);
    let mut expected = vec![GAP; dst.len()];
    let mut moved = 0;
    for (start, end) in starts(from).into_iter().zip(starts(to)) {
        expected[end..end + to.1].copy_from_slice(&content[start..start + from.1]);
        moved += to.1 as u64;
    }
    let copy = manager.copy_strided((&src, &layout(from)), (&dst, &layout(to))).unwrap();
    let report = if awaited { pollster::block_on(copy.into_future()) } else { copy.wait() }.unwrap();
    assert_eq!((report.bytes, report.method), (moved, TransferMethod::DirectCopy));
    assert!(*dst.read().unwrap() == expected[..], "{from:?} to {to:?}");
}

proptest! {
    #[test]
    fn copies_the_bytes_of_a_plain_loop((from, to) in shapes(), awaited in any::<bool>()) {
        let manager = on_host();
        check(&manager, &from, &to, awaited);
        prop_assert!(is_at_rest(&manager));
    }
}

#[test]
fn runs_that_are_interleaved_without_overlap_are_copied() {
    let manager = on_host();
    let dense = (0, 1, vec![(2, 1), (2, 2)]);
    check(&manager, &dense, &(0, 1, vec![(2, 2), (2, 3)]), false);
    // More rows than a polling thread lists, and a source that repeats its bytes.
    check(&manager, &(5, 3, vec![(20, 0), (30, 7)]), &(1, 3, vec![(20, 4), (30, 81)]), true);
}

#[test]
fn parts_of_one_allocation_may_be_interleaved() {
    let manager = on_host();
    let matrix = pageable(&manager, 64);
    matrix.write().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
    let columns = |at: usize| StridedLayout::new(2).at(at).repeat(8, 8);
    manager.copy_strided((&matrix, &columns(0)), (&matrix, &columns(4))).unwrap().wait().unwrap();
    let expected: Vec<u8> = (0..64).map(|index: u8| if index & 6 == 4 { index - 4 } else { index }).collect();
    assert_eq!(*matrix.read().unwrap(), expected[..]);
    let overlapping = manager.copy_strided((&matrix, &columns(0)), (&matrix, &columns(1))).unwrap();
    assert_eq!(overlapping.wait().unwrap_err().kind(), ErrorKind::Overlap);
    assert_eq!(*matrix.read().unwrap(), expected[..]);
}

#[test]
fn wrong_layouts_are_refused() {
    let manager = on_host();
    let (src, dst) = (pageable(&manager, 100), pageable(&manager, 100));
    let rows = |run, count, stride| StridedLayout::new(run).repeat(count, stride);
    let refused = |from: StridedLayout, to: StridedLayout| {
        let error = manager.copy_strided((&src, &from), (&dst, &to)).map(drop).unwrap_err();
        (error.kind(), error.to_string())
    };
    let good = rows(10, 5, 20);
    for (from, to, kind, text) in [
        (rows(10, 4, 20), good.clone(), ErrorKind::InvalidArgument, "4 × 10 bytes"),
        (rows(9, 5, 20), good.clone(), ErrorKind::InvalidArgument, "5 × 9 bytes"),
        (StridedLayout::new(10), good.clone(), ErrorKind::InvalidArgument, "10 bytes"),
        (rows(10, 0, 20), rows(10, 0, 20), ErrorKind::InvalidArgument, "0 × 10 bytes"),
        (rows(0, 5, 20), rows(0, 5, 20), ErrorKind::InvalidArgument, "5 × 0 bytes"),
        (good.clone().at(11), good.clone(), ErrorKind::OutOfRange, "source of 100 bytes"),
        (good.clone(), rows(10, 5, 23), ErrorKind::OutOfRange, "destination of 100 bytes"),
        (good.clone().at(usize::MAX), good.clone(), ErrorKind::OutOfRange, "source of 100 bytes"),
        (rows(10, 5, usize::MAX / 2), good.clone(), ErrorKind::OutOfRange, "source of 100 bytes"),
        (good.clone(), rows(10, 5, 9), ErrorKind::Overlap, "every 9 bytes"),
        (good.clone(), rows(10, 5, 0), ErrorKind::Overlap, "every 0 bytes"),
    ] {
        let (got, message) = refused(from, to);
        assert!(got == kind && message.contains(text), "{got:?}, {message}");
    }
    // Only the exact check finds these, when they are submitted.
    let (from, crossing) = (rows(2, 2, 2).repeat(3, 4), rows(2, 2, 3).repeat(3, 4));
    let error = manager.copy_strided((&src, &from), (&dst, &crossing)).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overlap);
    let million = pageable(&manager, 5_000_000);
    let many = rows(1, 33, 3).repeat(32, 101).repeat(1024, 4000);
    let error = manager.copy_strided((&million, &many), (&million, &many)).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::OutOfRange && error.to_string().contains("1048576"), "{error}");
    let (manager, _backend) = with(Mock::default());
    let fixed = read_only(100);
    let source = manager.allocate(MOCK, MemoryKind::Device, 100).unwrap();
    let error = manager.copy_strided((&source, &good), (&fixed, &good)).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn plan_and_report_count_the_rows_only() {
    let manager = on_host();
    let (src, dst) = (pageable(&manager, 1 << 20), pageable(&manager, 1 << 20));
    let rows = StridedLayout::new(100).repeat(1000, 1024);
    let copy = manager.copy_strided((&src, &rows), (&dst, &rows)).unwrap().priority(StreamPriority::High);
    let plan = copy.plan().unwrap();
    let report = copy.wait().unwrap();
    assert!(plan.agrees_with(&report), "{plan}\n{report}");
    assert_eq!((plan.bytes, report.bytes), (100_000, 100_000));
}

#[test]
fn list_of_rows_leaves_the_gaps_to_others() {
    let (manager, _backend) = beside_cpu();
    let there = manager.allocate(MOCK, MemoryKind::Device, 4096).unwrap();
    set_bytes(&there, 9);
    let src = pageable(&manager, 1024);
    src.write().unwrap().fill(5);
    let (dense, spread) = (StridedLayout::new(8).repeat(128, 8), StridedLayout::new(8).repeat(128, 32));
    let gap = there.slice(8..32).unwrap();
    let Ok(TryLockResult::Locked(used)) = gap.try_lock_range(Access::Write) else { panic!("in use") };
    let copy = || manager.copy_strided((&src, &dense), (&there, &spread)).unwrap();
    copy().method(TransferMethod::HostStaged).wait().unwrap();
    assert!((0..4096).all(|at| bytes(&there)[at] == if at % 32 < 8 { 5 } else { 9 }));
    drop(used);
    drop((src, there, gap));
    assert!(is_at_rest(&manager));
}

#[test]
fn limit_of_listed_rows_holds_for_interleaved_parts_and_staging() {
    const ROWS: usize = (1 << 20) + 1;
    let (manager, _backend) = beside_cpu();
    let host = pageable(&manager, 4 * ROWS);
    let columns = |at: usize| StridedLayout::new(1).at(at).repeat(ROWS, 4);
    let error = manager.copy_strided((&host, &columns(0)), (&host, &columns(2))).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::OutOfRange && error.to_string().contains("1048576"), "{error}");
    let there = manager.allocate(MOCK, MemoryKind::Device, 4 * ROWS).unwrap();
    let copy = manager.copy_strided((&host, &columns(0)), (&there, &columns(0))).unwrap();
    let error = copy.method(TransferMethod::HostStaged).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn short_rows_are_staged_where_no_driver_copies_pageable_memory() {
    let manager = on_host();
    let devices = vec![(MOCK, vec![MemoryKind::Device, MemoryKind::Pinned])];
    let copies = |src: Place, dst: Place| [src, dst].iter().all(|place| place.kind != MemoryKind::Pageable);
    manager.register_backend(Mock { devices, copies, ..Mock::default() }.build() as _).unwrap();
    let (src, there) = (pageable(&manager, 64), manager.allocate(MOCK, MemoryKind::Device, 64).unwrap());
    src.write().unwrap().fill(5);
    let rows = StridedLayout::new(4).repeat(8, 8);
    let copy = || manager.copy_strided((&src, &rows), (&there, &rows)).unwrap();
    assert_eq!(copy().plan().unwrap().method, TransferMethod::HostStaged);
    assert_eq!(copy().wait().unwrap().method, TransferMethod::HostStaged);
    assert_eq!(pollster::block_on(copy().into_future()).unwrap().method, TransferMethod::HostStaged);
    assert!((0..64).all(|at| bytes(&there)[at] == if at % 8 < 4 { 5 } else { 0 }));
}
