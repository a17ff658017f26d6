//! Strided copies between all kinds of memory: contents, and as few driver calls as the places allow.

use std::future::IntoFuture;

use transload::{
    DeviceId, ErrorKind, MemoryKind, RawBuffer, StridedLayout, TransferMethod,
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sys::{AsStream, trace};

use crate::cuda::{Setup, noise};

const KINDS: [MemoryKind; 5] =
    [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device, MemoryKind::Unified];

/// Offset, bytes of a run, and count and stride of each dimension, the innermost first.
type Plain<'a> = (usize, usize, &'a [(usize, usize)]);

fn layout((offset, run, dimensions): Plain<'_>) -> StridedLayout {
    let layout = StridedLayout::new(run).at(offset);
    dimensions.iter().fold(layout, |layout, (count, stride)| layout.repeat(*count, *stride))
}

/// Returns where each run begins.
fn starts((offset, _, dimensions): Plain<'_>) -> Vec<usize> {
    dimensions.iter().fold(vec![offset], |starts, (count, stride)| {
        (0..*count).flat_map(|index| starts.iter().map(move |start| start + index * stride)).collect()
    })
}

/// Copies the bytes back to the host.
fn read(setup: &Setup, from: &RawBuffer) -> Vec<u8> {
    let back = setup.allocate(MemoryKind::Pageable, from.len());
    setup.manager.copy(from, &back).wait().unwrap();
    back.read().unwrap().to_vec()
}

/// Contiguous, rows, planes of rows, a transposition, and rows of which each is read several times.
const SHAPES: [(Plain<'_>, Plain<'_>); 5] = [
    ((5, 300, &[(10, 300)]), (9, 300, &[(10, 300)])),
    ((3, 100, &[(40, 200)]), (0, 100, &[(40, 100)])),
    ((1, 24, &[(7, 60), (9, 1000)]), (2, 24, &[(7, 24), (9, 300)])),
    ((0, 4, &[(30, 80), (20, 4)]), (8, 4, &[(30, 4), (20, 120)])),
    ((7, 50, &[(3, 0), (12, 64)]), (0, 50, &[(3, 51), (12, 200)])),
];

#[test]
fn views_of_all_kinds_of_memory_arrive_whole() {
    const LEN: usize = 12_000;
    let setup = Setup::new();
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let content = noise(LEN, seed as u64);
        let source = setup.allocate(kind, LEN);
        setup.manager.copy(&setup.filled(MemoryKind::Pageable, &content), &source).wait().unwrap();
        for (round, to_kind) in KINDS.into_iter().enumerate() {
            for (from, to) in SHAPES {
                let target = setup.allocate(to_kind, LEN);
                let before = noise(LEN, 77);
                setup.manager.copy(&setup.filled(MemoryKind::Pageable, &before), &target).wait().unwrap();
                let mut expected = before;
                for (start, end) in starts(from).into_iter().zip(starts(to)) {
                    expected[end..end + to.1].copy_from_slice(&content[start..start + from.1]);
                }
                let copy =
                    setup.manager.copy_strided((&source, &layout(from)), (&target, &layout(to))).unwrap();
                let report =
                    if round % 2 == 0 { copy.wait() } else { pollster::block_on(copy.into_future()) };
                let report = report.unwrap_or_else(|error| panic!("{kind} to {to_kind}: {error}"));
                assert_eq!(report.bytes as usize, starts(from).len() * from.1);
                assert!(read(&setup, &target) == expected, "{kind} to {to_kind}, {from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn rows_at_one_distance_are_one_driver_call() {
    let setup = Setup::new();
    let device = CudaDevice::new(setup.test.ordinal()).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let far = setup.allocate(MemoryKind::Device, 4096 * 100);
    let (matrix, dense) =
        (StridedLayout::new(1000).at(24).repeat(100, 4096), StridedLayout::new(1000).repeat(100, 1000));
    let near = setup.filled(MemoryKind::Pinned, &noise(100_000, 3));
    for (src, dst) in [((&near, &dense), (&far, &matrix)), ((&far, &matrix), (&near, &dense))] {
        let copy = || setup.manager.copy_strided(src, dst).unwrap().on(&stream);
        copy().wait().unwrap();
        let trace = trace::start();
        let transfer = copy().submit();
        let calls = trace.calls_of_this_thread();
        let calls: Vec<_> = calls.iter().filter(|call| call.name.starts_with("cuMemcpy")).collect();
        let [call] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!(call.name, "cuMemcpy2DAsync_v2");
        assert_eq!(call.arguments[1], stream.driver().as_raw() as u64);
        assert_eq!(transfer.wait().unwrap().method, TransferMethod::DirectCopy);
    }
    // Short rows of pageable memory are the driver's, long ones staged.
    let pageable = setup.allocate(MemoryKind::Pageable, 5 * (64 << 10));
    for (width, method) in [(1000, TransferMethod::DirectCopy), (64 << 10, TransferMethod::HostStaged)] {
        let [from, to] = [width, width + 100].map(|pitch| StridedLayout::new(width).repeat(5, pitch));
        let copy = || setup.manager.copy_strided((&pageable, &from), (&far, &to)).unwrap();
        assert_eq!(copy().wait().unwrap().method, method);
        let forced = copy().method(TransferMethod::HostStaged).wait().unwrap();
        assert_eq!(forced.method, TransferMethod::HostStaged);
    }
    // A part of a stack of matrices: a call for each.
    let stack = StridedLayout::new(1000).repeat(20, 1200).repeat(5, 40_000);
    let packed = StridedLayout::new(1000).repeat(20, 1000).repeat(5, 20_000);
    let trace = trace::start();
    setup.manager.copy_strided((&near, &packed), (&far, &stack)).unwrap().wait().unwrap();
    let calls = trace.calls_of_this_thread();
    assert_eq!(calls.iter().filter(|call| call.name == "cuMemcpy2DAsync_v2").count(), 5);
    let off = setup.manager.copy_strided((&far, &matrix), (&near, &dense)).unwrap();
    let off = off.method(TransferMethod::PeerToPeer).wait().unwrap_err();
    assert_eq!(off.kind(), ErrorKind::Unsupported);
}

#[test]
fn gaps_of_one_operation_are_in_use_and_kept() {
    let setup = Setup::new();
    let (near, far) =
        (setup.filled(MemoryKind::Pinned, &[7; 6400]), setup.filled(MemoryKind::Mapped, &[9; 6400]));
    let there = setup.allocate(MemoryKind::Device, 6400);
    let half = |at: usize| StridedLayout::new(32).at(at).repeat(100, 64);
    let view = near.slice(32..64).unwrap();
    let view = view.write().unwrap();
    let up = || setup.manager.copy_strided((&near, &half(0)), (&there, &half(32))).unwrap();
    assert_eq!(up().wait().unwrap_err().kind(), ErrorKind::Busy);
    drop(view);
    setup.manager.copy(&far, &there).submit().wait().unwrap();
    // In the order of submission, whatever streams take them.
    let up = up().submit();
    let down = setup.manager.copy(&there, &far).submit();
    down.wait().unwrap();
    up.wait().unwrap();
    let expected: Vec<u8> = (0..6400).map(|at| if at % 64 < 32 { 9 } else { 7 }).collect();
    assert!(*far.read().unwrap() == expected[..]);
}

#[test]
fn gaps_of_pageable_copies_are_free_and_order_holds() {
    let setup = Setup::new();
    let content = noise(64 * 500, 5);
    let (near, far) =
        (setup.filled(MemoryKind::Pageable, &content), setup.allocate(MemoryKind::Device, 64 * 500));
    let back = setup.allocate(MemoryKind::Pageable, 64 * 500);
    let half = |at: usize| StridedLayout::new(32).at(at).repeat(500, 64);
    let copies = [
        setup.manager.copy_strided((&near, &half(0)), (&far, &half(32))).unwrap().submit(),
        setup.manager.copy_strided((&near, &half(32)), (&far, &half(0))).unwrap().submit(),
        setup.manager.copy_strided((&far, &half(0)), (&back, &half(32))).unwrap().submit(),
        setup.manager.copy_strided((&far, &half(32)), (&back, &half(0))).unwrap().submit(),
    ];
    for copy in copies {
        copy.wait().unwrap();
    }
    assert!(*back.read().unwrap() == content[..]);
    assert_eq!(back.place().device, DeviceId::Cpu);
}
