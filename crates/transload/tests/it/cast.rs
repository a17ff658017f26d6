//! Casts between all kinds of memory: contents, what the link carries, order and lifetime.

use std::future::IntoFuture;

use transload::{
    DeviceId, ErrorKind, FloatType, MemoryKind, RawBuffer,
    cuda::{CudaDevice, CudaStream},
};

use crate::{
    cuda::{Setup, noise},
    gate::{Gate, limited},
};

const KINDS: [MemoryKind; 5] =
    [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device, MemoryKind::Unified];
const TYPES: [(FloatType, FloatType); 6] = [
    (FloatType::F32, FloatType::Bf16),
    (FloatType::F32, FloatType::F16),
    (FloatType::Bf16, FloatType::F32),
    (FloatType::F16, FloatType::F32),
    (FloatType::Bf16, FloatType::F16),
    (FloatType::F16, FloatType::Bf16),
];

fn put(setup: &Setup, kind: MemoryKind, content: &[u8]) -> RawBuffer {
    let buffer = setup.allocate(kind, content.len());
    setup.manager.copy(&setup.filled(MemoryKind::Pageable, content), &buffer).wait().unwrap();
    buffer
}

fn read(setup: &Setup, from: &RawBuffer) -> Vec<u8> {
    let back = setup.allocate(MemoryKind::Pageable, from.len());
    setup.manager.copy(from, &back).wait().unwrap();
    back.read().unwrap().to_vec()
}

fn expected((from, to): (FloatType, FloatType), content: &[u8]) -> Vec<u8> {
    let mut expected = vec![0; content.len() / from.size() * to.size()];
    from.cast(content, to, &mut expected);
    expected
}

/// Returns whether memory is of the device.
fn is_there(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Device | MemoryKind::Unified)
}

#[test]
fn elements_of_all_kinds_of_memory_arrive_cast() {
    const ELEMENTS: usize = 5001;
    let setup = Setup::new();
    for (round, (from, to)) in TYPES.into_iter().enumerate() {
        let content = noise(4 * (ELEMENTS + 9), round as u64);
        for (src_kind, dst_kind) in KINDS.into_iter().flat_map(|src| KINDS.map(|dst| (src, dst))) {
            let (source, target) = (put(&setup, src_kind, &content), setup.allocate(dst_kind, content.len()));
            setup.manager.copy(&setup.filled(MemoryKind::Pageable, &content), &target).wait().unwrap();
            let (src, dst) = (3 * from.size(), 5 * to.size());
            let (src_range, dst_range) = (src..src + ELEMENTS * from.size(), dst..dst + ELEMENTS * to.size());
            let (part, into) =
                (source.slice(src_range.clone()).unwrap(), target.slice(dst_range.clone()).unwrap());
            let cast = setup.manager.cast((&part, from), (&into, to));
            let report =
                if round % 2 == 0 { cast.wait() } else { pollster::block_on(cast.into_future()) }.unwrap();
            let what = format!("{src_kind} {from} → {dst_kind} {to}");
            assert_eq!((report.elements, report.from, report.to), (ELEMENTS as u64, from, to), "{what}");
            let mut all = content.clone();
            all[dst_range].copy_from_slice(&expected((from, to), &content[src_range]));
            assert!(read(&setup, &target) == all, "{what}");
            // What comes from the device is cast there first, and what goes to it is cast there at last.
            let carried = match (is_there(src_kind), is_there(dst_kind)) {
                (true, false) => Some(ELEMENTS * to.size()),
                (false, true) => Some(ELEMENTS * from.size()),
                _ => None,
            };
            assert_eq!(report.copied.map(|copied| copied.bytes as usize), carried, "{what}");
            let at_host = !is_there(src_kind) && !is_there(dst_kind);
            assert_eq!(report.lane, if at_host { DeviceId::Cpu } else { setup.device }, "{what}");
        }
    }
}

#[test]
fn long_casts_go_through_bounded_scratch_memory() {
    // Four chunks of f32, and two of bf16.
    const ELEMENTS: usize = (26 << 20) + 77;
    let setup = Setup::new();
    // No multiple of a chunk.
    const PERIOD: usize = 1_000_003;
    let period = noise(4 * PERIOD, 3);
    let narrow = expected((FloatType::F32, FloatType::Bf16), &period);
    let wide = expected((FloatType::Bf16, FloatType::F32), &narrow);
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let (source, back) = (setup.allocate(kind, 4 * ELEMENTS), setup.allocate(kind, 4 * ELEMENTS));
        let there = setup.allocate(MemoryKind::Device, 2 * ELEMENTS);
        source
            .write()
            .unwrap()
            .chunks_mut(period.len())
            .for_each(|part| part.copy_from_slice(&period[..part.len()]));
        let before = in_use(&setup);
        let up = setup.manager.cast((&source, FloatType::F32), (&there, FloatType::Bf16)).submit();
        // Pageable memory is staged by pinned memory, too.
        assert!(in_use(&setup).saturating_sub(before) <= 96 << 20 || kind == MemoryKind::Pageable);
        let down = setup.manager.cast((&there, FloatType::Bf16), (&back, FloatType::F32)).submit();
        let report = up.wait().unwrap();
        assert_eq!(report.copied.as_ref().unwrap().bytes, 4 * ELEMENTS as u64, "{report}");
        down.wait().unwrap();
        assert!(back.read().unwrap().chunks(wide.len()).all(|part| *part == wide[..part.len()]), "{kind}");
    }
}

/// Returns the bytes that the CUDA backend's users have.
fn in_use(setup: &Setup) -> u64 {
    let counts = setup.manager.resource_counts();
    let (_, counts) = counts.into_iter().find(|(name, _)| *name == "cuda").unwrap();
    counts.bytes - counts.cached_bytes
}

#[test]
fn casts_are_ordered_with_other_work_on_their_bytes() {
    const ELEMENTS: usize = 100_003;
    let setup = Setup::new();
    let (first, second) = (noise(4 * ELEMENTS, 1), noise(4 * ELEMENTS, 2));
    let sources = [&first, &second].map(|content| setup.filled(MemoryKind::Pinned, content));
    let wide = setup.allocate(MemoryKind::Device, 4 * ELEMENTS);
    let narrow = setup.allocate(MemoryKind::Device, 2 * ELEMENTS);
    for _ in 0..5 {
        let backs = [0, 1].map(|_| setup.filled(MemoryKind::Pinned, &vec![0xEE; 2 * ELEMENTS]));
        let (mut copies, mut casts) = (Vec::new(), Vec::new());
        for (source, back) in sources.iter().zip(&backs) {
            copies.push(setup.manager.copy(source, &wide).submit());
            casts.push(setup.manager.cast((&wide, FloatType::F32), (&narrow, FloatType::F16)).submit());
            copies.push(setup.manager.copy(&narrow, back).submit());
            // Through scratch memory, over what the next round writes.
            casts.push(setup.manager.cast((&wide, FloatType::F32), (back, FloatType::Bf16)).submit());
            casts.push(setup.manager.cast((source, FloatType::F32), (&narrow, FloatType::Bf16)).submit());
        }
        copies.into_iter().for_each(|copy| drop(copy.wait().unwrap()));
        casts.into_iter().for_each(|cast| drop(cast.wait().unwrap()));
        for (content, back) in [&first, &second].into_iter().zip(&backs) {
            assert!(*back.read().unwrap() == expected((FloatType::F32, FloatType::Bf16), content));
        }
        assert!(read(&setup, &narrow) == expected((FloatType::F32, FloatType::Bf16), &second));
    }
}

#[test]
fn dropped_casts_keep_their_memory_and_finish() {
    const ELEMENTS: usize = 300_000;
    let setup = Setup::new();
    let content = noise(4 * ELEMENTS, 9);
    let there = setup.allocate(MemoryKind::Device, 2 * ELEMENTS);
    let source = setup.filled(MemoryKind::Pinned, &content);
    drop(setup.manager.cast((&source, FloatType::F32), (&there, FloatType::F16)).submit());
    drop(source);
    let unpolled = setup.manager.cast((&there, FloatType::F16), (&there, FloatType::Bf16)).submit_async();
    drop(unpolled);
    assert!(read(&setup, &there) == expected((FloatType::F32, FloatType::F16), &content));
}

#[test]
fn invalid_casts_are_refused_with_what_is_valid() {
    let setup = Setup::new();
    let (wide, there) =
        (setup.filled(MemoryKind::Pinned, &[1; 64]), put(&setup, MemoryKind::Device, &[2; 64]));
    let part = |of: &RawBuffer, range: std::ops::Range<usize>| of.slice(range).unwrap();
    let f32 = FloatType::F32;
    let f16 = FloatType::F16;
    for (src, dst, kind, text) in [
        ((part(&wide, 0..0), f32), (part(&there, 0..0), f16), ErrorKind::InvalidArgument, "at least 1"),
        (
            (part(&wide, 0..16), f32),
            (part(&there, 0..16), f16),
            ErrorKind::InvalidArgument,
            "4 elements of f32, destination 8 of f16",
        ),
        ((part(&wide, 0..15), f32), (part(&there, 0..8), f16), ErrorKind::InvalidArgument, "multiples of 4"),
        ((part(&wide, 2..18), f32), (part(&there, 0..8), f16), ErrorKind::InvalidArgument, "multiples of 4"),
        ((part(&wide, 0..16), f32), (part(&there, 1..9), f16), ErrorKind::InvalidArgument, "multiples of 2"),
        (
            (part(&wide, 0..16), f32),
            (part(&there, 0..16), f32),
            ErrorKind::InvalidArgument,
            "expected two types",
        ),
        ((part(&there, 0..16), f32), (part(&there, 8..16), f16), ErrorKind::Overlap, "disjoint"),
    ] {
        let cast = setup.manager.cast((&src.0, src.1), (&dst.0, dst.1));
        for error in [cast.clone().wait().unwrap_err(), pollster::block_on(cast.into_future()).unwrap_err()] {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
    assert_eq!(setup.manager.refused(), 14);
    assert_eq!(read(&setup, &there), [2; 64]);
    // What the first step finds counts, too.
    let [source, into] = [64, 32].map(|bytes| setup.filled(MemoryKind::Pageable, &vec![0; bytes]));
    let open = source.write().unwrap();
    let cast = setup.manager.cast((&source, f32), (&into, f16));
    for error in [cast.clone().wait().unwrap_err(), pollster::block_on(cast.into_future()).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    assert_eq!(setup.manager.refused(), 16);
    drop(open);
}

#[test]
fn held_up_casts_do_not_hold_up_independent_ones() {
    limited(|| {
        const ELEMENTS: usize = 4096;
        let setup = Setup::new();
        let gpu = CudaDevice::new(setup.test.ordinal()).unwrap();
        let stream = CudaStream::new(&gpu).unwrap();
        let content = noise(4 * ELEMENTS, 4);
        let source = setup.filled(MemoryKind::Pinned, &content);
        let there = setup.allocate(MemoryKind::Device, 2 * ELEMENTS);
        let blocked = setup.allocate(MemoryKind::Device, 4);
        // Loading a kernel waits for the device.
        setup.manager.cast((&source, FloatType::F32), (&there, FloatType::F16)).wait().unwrap();
        let gate = Gate::before(&gpu, &[&stream]);
        let word = setup.filled(MemoryKind::Pinned, &[1; 4]);
        let opens = setup.manager.copy(&word, &blocked).on(&stream).submit();
        // As many as there are buffers.
        let mut held_up = Vec::new();
        for _ in 0..3 {
            let target = setup.allocate(MemoryKind::Device, 2 * ELEMENTS);
            let cast = setup.manager.cast((&source, FloatType::F32), (&target, FloatType::F16));
            held_up.push((cast.after(opens.fence().unwrap()).submit(), target));
        }
        let cast = setup.manager.cast((&source, FloatType::F32), (&there, FloatType::F16));
        cast.clone().wait().unwrap();
        pollster::block_on(cast.into_future()).unwrap();
        assert!(held_up.iter().all(|(cast, _)| !cast.is_complete()));
        gate.open();
        for (cast, target) in held_up {
            cast.wait().unwrap();
            assert!(read(&setup, &target) == expected((FloatType::F32, FloatType::F16), &content));
        }
        opens.wait().unwrap();
    });
}
