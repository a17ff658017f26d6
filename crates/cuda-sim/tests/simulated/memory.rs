//! Fresh and freed memory, stream-ordered lifetimes, pools, registrations, batches.

use std::ptr;

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, Device, DriverError, check, ffi};

use crate::raw::{Bench, INVALID_VALUE, code, contents, fill};

const ILLEGAL_ADDRESS: u32 = 700;

#[test]
fn fresh_memory_is_not_zero_and_device_only() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let (first, second) = (bench.memory(1000), bench.memory(1000));
    assert_eq!(contents(&bench, first.address, 1000), vec![0xCD; 1000]);
    assert!(second.address.abs_diff(first.address) >= 1000);
    assert_eq!(first.address % 256, 0);
    let mut kind = 0_u32;
    let _bound = bench.context.enter().expect("enter");
    let mut place = 0_u64;
    // SAFETY: attribute 4 (host pointer) does not exist for device memory; the place is large enough for a pointer.
    let refused = unsafe { ffi::cuPointerGetAttribute((&raw mut place).cast(), 4, first.address) };
    assert_eq!(refused, INVALID_VALUE);
    // SAFETY: attribute 8 is a truth value.
    assert_eq!(unsafe { ffi::cuPointerGetAttribute((&raw mut kind).cast(), 8, first.address) }, 0);
    assert_eq!(kind, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn no_readable_mapping_covers_a_device_address() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let memory = bench.memory(4096);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    for line in maps.lines() {
        let mut words = line.split([' ', '-']);
        let mut bound = || u64::from_str_radix(words.next().unwrap_or_default(), 16).expect("an address");
        let (start, end) = (bound(), bound());
        if (start..end).contains(&memory.address) {
            assert_eq!(line.split(' ').nth(1), Some("---p"), "{line}");
        }
    }
}

#[test]
fn use_after_stream_ordered_free_is_sticky_error() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    unsafe {
        check("alloc", ffi::cuMemAllocAsync(&mut address, 4096, stream.as_raw())).expect("alloc");
        check("free", ffi::cuMemFreeAsync(address, stream.as_raw())).expect("free");
        assert_eq!(ffi::cuMemFreeAsync(address, stream.as_raw()), INVALID_VALUE, "freed already");
    }
    // The range is still known, because the free has not run: the copy fails only when it runs.
    fill(&stream, address, 1, 4096).expect("enqueued");
    let error = stream.synchronize();
    assert!(error.as_ref().is_err_and(DriverError::is_sticky), "{error:?}");
    assert_eq!(code(error), ILLEGAL_ADDRESS);
    assert_eq!(code(bench.context.memory_info()), ILLEGAL_ADDRESS, "the error sticks");
    assert!(Device::new(bench.device.ordinal()).is_ok(), "the device itself answers");
}

#[test]
fn use_before_stream_ordered_allocation_is_sticky_error() {
    let mut failures = 0;
    for seed in 0..32 {
        let Some(test) = harness::device_with(|builder| builder.seed(seed)) else { return };
        let bench = Bench::unchecked(test);
        let (first, second) = (bench.stream(), bench.stream());
        let _bound = bench.context.enter().expect("enter");
        let mut address = 0;
        // SAFETY: the out pointer is valid.
        check("alloc", unsafe { ffi::cuMemAllocAsync(&mut address, 64, first.as_raw()) }).expect("alloc");
        fill(&second, address, 1, 64).expect("enqueued without a wait");
        failures += u32::from(second.synchronize().is_err());
    }
    assert!(failures > 8, "{failures} of 32");
}

#[test]
fn a_pool_keeps_what_its_threshold_says() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let mut pool = ptr::null_mut();
    let ordinal = bench.context.device().as_raw();
    let attribute = |pool, number| {
        let mut value = 0_u64;
        // SAFETY: attributes 4 to 8 are 64-bit numbers.
        let answer = unsafe { ffi::cuMemPoolGetAttribute(pool, number, (&raw mut value).cast()) };
        check("cuMemPoolGetAttribute", answer).map(|()| value)
    };
    // SAFETY: all out pointers are valid.
    unsafe {
        check("default", ffi::cuDeviceGetDefaultMemPool(&mut pool, ordinal)).expect("pool");
        let keep = 1_u64 << 20;
        let set = ffi::cuMemPoolSetAttribute(pool, 4, (&raw const keep).cast_mut().cast());
        check("threshold", set).expect("threshold");
        let mut address = 0;
        check("alloc", ffi::cuMemAllocAsync(&mut address, 4 << 20, stream.as_raw())).expect("alloc");
        assert_eq!(attribute(pool, 7), Ok(4 << 20));
        check("free", ffi::cuMemFreeAsync(address, stream.as_raw())).expect("free");
    }
    stream.synchronize().expect("healthy");
    assert_eq!(
        (attribute(pool, 5), attribute(pool, 7), attribute(pool, 8)),
        (Ok(1 << 20), Ok(0), Ok(4 << 20))
    );
    // SAFETY: the pool is alive.
    check("trim", unsafe { ffi::cuMemPoolTrimTo(pool, 0) }).expect("trim");
    assert_eq!(attribute(pool, 5), Ok(0));
    assert_eq!(bench.context.memory_info(), Ok((256 << 20, 256 << 20)));
}

#[test]
fn a_device_without_pools_says_so() {
    let Some(test) = harness::device_with(|builder| builder.pre_pascal()) else { return };
    let bench = Bench::new(test);
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    assert_eq!(unsafe { ffi::cuMemAllocAsync(&mut address, 64, bench.stream().as_raw()) }, 801);
    let device = bench.context.device();
    assert_eq!(device.attribute(transload_cuda_sys::attribute::MEMORY_POOLS_SUPPORTED), Ok(0));
    assert_eq!(device.compute_capability(), Ok((5, 2)));
}

#[test]
fn use_after_unregister_is_illegal_unless_driver_waits() {
    let failed = |seed: &u64| {
        let bench = Bench::new(harness::device_with(|builder| builder.seed(*seed)).expect("simulated"));
        let stream = bench.stream();
        let _bound = bench.context.enter().expect("enter");
        let memory = bench.memory(1 << 20);
        let source = vec![1_u8; 1 << 20];
        let start = source.as_ptr().cast_mut().cast();
        // SAFETY: the vector outlives the registration; the mistake is what is tested, and the driver touches nothing.
        unsafe {
            check("register", ffi::cuMemHostRegister_v2(start, 1 << 20, 0)).expect("register");
            check("up", ffi::cuMemcpyHtoDAsync_v2(memory.address, start, 1 << 20, stream.as_raw()))
                .expect("up");
            check("unregister", ffi::cuMemHostUnregister(start)).expect("unregister");
        }
        let ended = stream.synchronize();
        ended.is_err() && code(ended) == ILLEGAL_ADDRESS
    };
    let failed = (0..24).filter(failed).count();
    assert!((1..=12).contains(&failed), "{failed} of 24");
}
