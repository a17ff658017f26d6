//! Batched copies, by both forms of the call, and the kernel that copies a list of pieces.

use std::ptr;

use transload_core::host_access::{self, HostAccess};
use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, RawStream, Stream, check, cust::sys::CUfunction, ffi,
};

use crate::raw::{Bench, INVALID_VALUE, Pinned, contents, upload};

const NOT_PERMITTED: u32 = 900;
const PART: usize = 1024;
const PLACE: ffi::MemLocation = ffi::MemLocation { kind: 0, id: 0 };

fn attributes(src_access_order: u32, flags: u32) -> ffi::MemcpyAttributes {
    ffi::MemcpyAttributes { src_access_order, src_location: PLACE, dst_location: PLACE, flags }
}

/// A batch of (to, from, bytes), with attributes and the copy at which each begins.
struct Batch<'a> {
    copies: &'a [(u64, u64, usize)],
    attributes: &'a [(ffi::MemcpyAttributes, usize)],
}

impl Batch<'_> {
    /// Returns the code, and the index that the form of 12.8 gives.
    fn enqueue(&self, stream: RawStream, newer: bool) -> (u32, usize) {
        let mut to: Vec<u64> = self.copies.iter().map(|copy| copy.0).collect();
        let mut from: Vec<u64> = self.copies.iter().map(|copy| copy.1).collect();
        let mut sizes: Vec<usize> = self.copies.iter().map(|copy| copy.2).collect();
        let (mut attributes, mut first): (Vec<_>, Vec<_>) = self.attributes.iter().copied().unzip();
        let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        let (count, kinds) = (self.copies.len(), self.attributes.len());
        let (attributes, first) = (attributes.as_mut_ptr(), first.as_mut_ptr());
        let mut failed = 77;
        // SAFETY: all arrays are as long as the counts say; tests keep the memory until the stream is done.
        let code = unsafe {
            if newer {
                ffi::cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, kinds, stream)
            } else {
                let failed = &raw mut failed;
                ffi::cuMemcpyBatchAsync(to, from, sizes, count, attributes, first, kinds, failed, stream)
            }
        };
        (code, failed)
    }
}

fn bench() -> Option<Bench> {
    harness::device_with(|builder| builder.record_accesses(true)).map(Bench::unchecked)
}

/// The quarters of `source`, in reverse order.
fn quarters(to: u64, source: &Pinned) -> Vec<(u64, u64, usize)> {
    let from = source.address() as u64;
    (0..4).map(|part| (to + part * PART as u64, from + (3 - part) * PART as u64, PART)).collect()
}

#[test]
fn a_batch_copies_all_its_parts() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    for (newer, seed) in [(false, 8), (true, 9)] {
        let (memory, mut source) = (bench.memory(4 * PART), bench.pinned(4 * PART));
        let sent = noise(4 * PART, seed);
        source.set(&sent);
        let copies = quarters(memory.address, &source);
        let batch = Batch { copies: &copies, attributes: &[(attributes(1, 0), 0), (attributes(3, 1), 2)] };
        assert_eq!(batch.enqueue(stream.as_raw(), newer).0, 0);
        stream.synchronize().expect("healthy");
        let seen = contents(&bench, memory.address, 4 * PART);
        for part in 0..4 {
            assert_eq!(seen[part * PART..][..PART], sent[(3 - part) * PART..][..PART], "part {part}");
        }
    }
}

#[test]
fn a_refused_batch_enqueues_nothing_and_names_the_copy() {
    const NO_COPY: usize = usize::MAX;
    let Some(bench) = bench() else { return };
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let (memory, source) = (bench.memory(4 * PART), bench.pinned(4 * PART));
    let good = quarters(memory.address, &source);
    let (mut beyond, mut empty) = (good.clone(), good.clone());
    beyond[2].2 = 3 * PART;
    empty[3].2 = 0;
    let plain = [(attributes(1, 0), 0)];
    for (copies, attributes, index) in [
        (&beyond, &plain[..], 2),
        (&empty, &plain[..], 3),
        (&good, &[][..], NO_COPY),
        (&good, &[(attributes(0, 0), 0)][..], NO_COPY),
        (&good, &[(attributes(1, 2), 0)][..], NO_COPY),
        (&good, &[(attributes(1, 0), 1)][..], NO_COPY),
        (&good, &[(attributes(1, 0), 0), (attributes(1, 0), 0)][..], NO_COPY),
        (&good, &[(attributes(1, 0), 0), (attributes(1, 0), 4)][..], NO_COPY),
    ] {
        let batch = Batch { copies, attributes };
        assert_eq!(batch.enqueue(stream.as_raw(), false), (INVALID_VALUE, index));
        assert_eq!(batch.enqueue(stream.as_raw(), true).0, INVALID_VALUE);
    }
    let batch = Batch { copies: &good, attributes: &plain };
    assert_eq!(batch.enqueue(ptr::null_mut(), false), (INVALID_VALUE, NO_COPY), "the default stream");
    assert_eq!(bench.device.sim().expect("simulated").queued(), 0);
}

#[test]
fn a_capturing_stream_refuses_a_batch_and_stays_valid() {
    let Some(bench) = bench() else { return };
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let (memory, source) = (bench.memory(4 * PART), bench.pinned(4 * PART));
    let copies = quarters(memory.address, &source);
    // SAFETY: nothing else is enqueued meanwhile.
    let capture = unsafe { Capture::begin(&stream, CaptureMode::Relaxed) }.expect("begin");
    for newer in [false, true] {
        let batch = Batch { copies: &copies, attributes: &[(attributes(1, 0), 0)] };
        assert_eq!(batch.enqueue(stream.as_raw(), newer).0, NOT_PERMITTED);
    }
    capture.end().expect("the capture is valid");
}

#[test]
fn a_batch_races_only_where_a_copy_touches() {
    for (offset, expected) in [(PART as u64, 0), (2 * PART as u64, 1)] {
        let Some(bench) = bench() else { return };
        let (one, two) = (bench.stream(), bench.stream());
        let _bound = bench.context.enter().expect("enter");
        let (memory, source) = (bench.memory(4 * PART), bench.pinned(4 * PART));
        let mut copies = quarters(memory.address, &source);
        copies.remove(1);
        let batch = Batch { copies: &copies, attributes: &[(attributes(1, 0), 0)] };
        assert_eq!(batch.enqueue(one.as_raw(), true).0, 0);
        upload(&two, memory.address + offset, &source, 0, PART).expect("up");
        bench.context.synchronize().expect("healthy");
        assert_eq!(bench.device.sim().expect("simulated").races().len(), expected, "at {offset}");
    }
}

/// The library's kernel, with a list of (to, from, bytes).
struct ListKernel(CUfunction);

impl ListKernel {
    const PTX: &[u8] = b".version 6.0\n.target sm_50\n.visible .entry transload_copy_list( ) { ret; }\n\0";

    fn load(bench: &Bench) -> Self {
        let _bound = bench.context.enter().expect("enter");
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the image and the name end with NUL; the out pointers are valid.
        unsafe {
            check("load", ffi::cuModuleLoadData(&mut module, Self::PTX.as_ptr().cast())).expect("load");
            let code = ffi::cuModuleGetFunction(&mut function, module, c"transload_copy_list".as_ptr());
            check("function", code).expect("function");
        }
        Self(function)
    }

    fn launch(&self, stream: &Stream, list: u64, count: u64) {
        let _bound = stream.context().enter().expect("enter");
        let more = 0_u32;
        let parameters = [(&raw const list).cast(), (&raw const count).cast(), (&raw const more).cast()];
        let mut parameters = parameters.map(|parameter: *const std::ffi::c_void| parameter.cast_mut());
        let (parameters, none) = (parameters.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the kernel has these three parameters; tests keep the memory until the stream is done.
        let code =
            unsafe { ffi::cuLaunchKernel(self.0, 4, 1, 1, 256, 1, 1, 0, stream.as_raw(), parameters, none) };
        check("launch", code).expect("launch");
    }
}

fn list_of(bench: &Bench, copies: &[(u64, u64, usize)]) -> Pinned {
    let mut list = bench.pinned(copies.len() * 24);
    let numbers = copies.iter().flat_map(|(to, from, bytes)| [*to, *from, *bytes as u64]);
    let content: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    list.set(&content);
    list
}

#[test]
fn the_list_kernel_copies_each_piece_and_its_list_stays_until_then() {
    for rewrites in [false, true] {
        let Some(bench) = bench() else { return };
        let (kernel, stream) = (ListKernel::load(&bench), bench.stream());
        let (memory, mut source) = (bench.memory(4 * PART), bench.pinned(4 * PART));
        source.set(&noise(4 * PART, 3));
        let copies = quarters(memory.address, &source);
        let list = list_of(&bench, &copies);
        kernel.launch(&stream, list.address() as u64, 4);
        if rewrites {
            host_access::note(list.address(), 24, HostAccess::Write);
        }
        stream.synchronize().expect("healthy");
        let seen = contents(&bench, memory.address, 4 * PART);
        assert_eq!(seen[..PART], noise(4 * PART, 3)[3 * PART..]);
        assert_eq!(seen[3 * PART..], noise(4 * PART, 3)[..PART]);
        assert_eq!(bench.device.sim().expect("simulated").races().len(), usize::from(rewrites));
    }
}

#[test]
fn the_list_kernel_races_where_a_listed_piece_does() {
    let Some(bench) = bench() else { return };
    let (kernel, one, two) = (ListKernel::load(&bench), bench.stream(), bench.stream());
    let (memory, source) = (bench.memory(4 * PART), bench.pinned(4 * PART));
    let list = list_of(&bench, &quarters(memory.address, &source)[..2]);
    kernel.launch(&one, list.address() as u64, 2);
    upload(&two, memory.address + 2 * PART as u64, &source, 0, PART).expect("up");
    assert!(bench.device.sim().expect("simulated").races().is_empty());
    upload(&two, memory.address, &source, 0, PART).expect("up");
    bench.context.synchronize().expect("healthy");
    assert_eq!(bench.device.sim().expect("simulated").races().len(), 1);
}

#[test]
fn the_list_kernel_faults_on_a_list_that_it_cannot_read() {
    let Some(bench) = bench() else { return };
    let (kernel, stream) = (ListKernel::load(&bench), bench.stream());
    let memory = bench.memory(PART);
    kernel.launch(&stream, memory.address, 1 << 60);
    assert!(stream.synchronize().is_err());
}
