//! Allocation, its limits, and pointer attributes.

use std::ptr;

use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{AsStream, Device, DriverError, attribute, check, ffi};

use crate::raw::{Bench, INVALID_VALUE, OUT_OF_MEMORY, code, contents, download, fill, upload};
#[test]
fn freeing_twice_is_refused() {
    let bench = Bench::new(harness::device());
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid; the second call passes an address that the driver only looks up.
    unsafe {
        check("alloc", ffi::cuMemAlloc_v2(&mut address, 3 << 20)).expect("alloc");
        check("free", ffi::cuMemFree_v2(address)).expect("free");
        assert_eq!(ffi::cuMemFree_v2(address), INVALID_VALUE);
    }
}

#[test]
fn nothing_can_be_allocated_with_no_bytes() {
    let bench = Bench::new(harness::device());
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    assert_eq!(unsafe { ffi::cuMemAlloc_v2(&mut address, 0) }, INVALID_VALUE);
}

#[test]
fn out_of_memory_leaves_the_device_usable() {
    let bench = Bench::new(harness::device());
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    let refused = check("cuMemAlloc", unsafe { ffi::cuMemAlloc_v2(&mut address, 1 << 50) });
    assert!(refused.as_ref().is_err_and(DriverError::is_out_of_memory), "{refused:?}");
    assert!(!refused.as_ref().is_err_and(DriverError::is_sticky));
    assert_eq!(code(refused), OUT_OF_MEMORY);
    let memory = bench.memory(4096);
    fill(&bench.stream(), memory.address, 3, 4096).expect("fill");
    assert_eq!(contents(&bench, memory.address, 4096), vec![3; 4096]);
}

#[test]
fn a_copy_beyond_an_allocation_is_refused() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    // Larger than the drivers' allocation granularity; the host range is long enough.
    let memory = bench.memory(4 << 20);
    let source = bench.pinned((64 << 20) + 1);
    let beyond = upload(&stream, memory.address, &source, 0, 64 << 20);
    assert_eq!(code(beyond), INVALID_VALUE);
    upload(&stream, memory.address, &source, 0, 4 << 20).expect("the context is as it was");
    stream.synchronize().expect("healthy");
}

#[test]
fn mapped_memory_has_a_device_pointer() {
    let bench = Bench::new(harness::device());
    let _bound = bench.context.enter().expect("enter");
    let mut pinned = bench.pinned(8192);
    pinned.set(&noise(8192, 3));
    let (mut address, mut flags) = (0, 0);
    // SAFETY: the out pointers are valid.
    unsafe {
        let asked = ffi::cuMemHostGetDevicePointer_v2(&mut address, pinned.pointer().cast(), 0);
        check("device pointer", asked).expect("mapped");
        check("flags", ffi::cuMemHostGetFlags(&mut flags, pinned.pointer().cast())).expect("flags");
    }
    assert_eq!(flags & 2, 2);
    let memory = bench.memory(8192);
    let stream = bench.stream();
    // SAFETY: the device pointer stands for the whole pinned allocation.
    check("copy", unsafe { ffi::cuMemcpyDtoDAsync_v2(memory.address, address, 8192, stream.as_raw()) })
        .expect("copy");
    stream.synchronize().expect("healthy");
    assert_eq!(contents(&bench, memory.address, 8192), noise(8192, 3));
}

#[test]
fn pointers_are_known_for_what_they_are() {
    let bench = Bench::new(harness::device());
    let _bound = bench.context.enter().expect("enter");
    let memory = bench.memory(1 << 20);
    let pinned = bench.pinned(4096);
    let ordinary = [0_u8; 64];
    let kind = |address: u64| {
        let mut kind = 0_u32;
        // SAFETY: the attribute 2 (memory type) is an unsigned integer; the address is only looked up.
        let answer = unsafe { ffi::cuPointerGetAttribute((&raw mut kind).cast(), 2, address) };
        check("cuPointerGetAttribute", answer).map(|()| kind)
    };
    assert_eq!(kind(memory.address), Ok(2));
    assert_eq!(kind(memory.address + (1 << 20) - 1), Ok(2));
    assert_eq!(kind(pinned.address() as u64), Ok(1));
    assert_eq!(code(kind(ordinary.as_ptr().addr() as u64)), INVALID_VALUE);
}

#[test]
fn memory_taken_from_a_pool_is_ordered_by_its_stream() {
    let test = harness::device();
    let device = Device::new(test.ordinal()).expect("device");
    if device.attribute(attribute::MEMORY_POOLS_SUPPORTED) != Ok(1) {
        println!("skipped: the device has no memory pools");
        return;
    }
    let bench = Bench::new(test);
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let bytes = (1 << 20) + 100;
    let mut source = bench.pinned(bytes);
    let target = bench.pinned(bytes);
    for round in 0..5 {
        let content = noise(bytes, round + 900);
        source.set(&content);
        let mut address = 0;
        // SAFETY: the out pointer is valid; the memory is used in stream order only.
        unsafe {
            check("alloc", ffi::cuMemAllocAsync(&mut address, bytes, stream.as_raw())).expect("alloc");
            upload(&stream, address, &source, 0, bytes).expect("up");
            download(&stream, &target, 0, address, bytes).expect("down");
            check("free", ffi::cuMemFreeAsync(address, stream.as_raw())).expect("free");
        }
        stream.synchronize().expect("healthy");
        assert_eq!(target.snapshot(), content, "round {round}");
    }
}

#[test]
fn managed_memory_makes_the_round_trip() {
    let test = harness::device();
    let device = Device::new(test.ordinal()).expect("device");
    if device.attribute(attribute::MANAGED_MEMORY) != Ok(1) {
        println!("skipped: the device has no managed memory");
        return;
    }
    let bench = Bench::new(test);
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let bytes = 1 << 20;
    let content = noise(bytes, 55);
    let memory = bench.memory(bytes);
    let mut address = 0;
    // SAFETY: the out pointer is valid; managed memory is the host's too while the device is idle.
    unsafe {
        check("managed", ffi::cuMemAllocManaged(&mut address, bytes, 1)).expect("managed");
        let host: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
        ptr::copy_nonoverlapping(content.as_ptr(), host, bytes);
        if device.attribute(attribute::CONCURRENT_MANAGED_ACCESS) == Ok(1) {
            let there = ffi::cuMemPrefetchAsync(address, bytes, device.as_raw(), stream.as_raw());
            check("prefetch", there).expect("prefetch");
        }
        check("copy", ffi::cuMemcpyAsync(memory.address, address, bytes, stream.as_raw())).expect("copy");
        check("fill", ffi::cuMemsetD8Async(address, 9, bytes / 2, stream.as_raw())).expect("fill");
        stream.synchronize().expect("healthy");
        let mut seen = vec![0; bytes];
        ptr::copy_nonoverlapping(host, seen.as_mut_ptr(), bytes);
        assert!(seen[..bytes / 2].iter().all(|byte| *byte == 9));
        assert_eq!(seen[bytes / 2..], content[bytes / 2..]);
        check("free", ffi::cuMemFree_v2(address)).expect("free");
    }
    assert_eq!(contents(&bench, memory.address, bytes), content);
}
