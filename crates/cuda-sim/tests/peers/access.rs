//! Which memory of another device a context may use.

use std::ptr;

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, check, cust::sys::CUmemoryPool, ffi};

use crate::raw::Bench;

const BYTES: usize = 4096;
const INVALID_VALUE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;

/// Makes a pool of a device and allocates memory of it.
fn pool(bench: &Bench) -> (CUmemoryPool, u64) {
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    // `CUmemPoolProps`, of 8-byte words: pinned memory, and the device.
    let mut properties = [0_u64; 11];
    properties[0] = 1;
    properties[1] = u64::from(DEVICE) | u64::from(bench.context.device().as_raw().cast_unsigned()) << 32;
    let (mut pool, mut address) = (ptr::null_mut(), 0);
    // SAFETY: the out pointers are valid, and the properties have the structure's layout.
    unsafe {
        check("create", ffi::cuMemPoolCreate(&mut pool, properties.as_ptr().cast())).expect("a pool");
        let code = ffi::cuMemAllocFromPoolAsync(&mut address, BYTES, pool, stream.as_raw());
        check("allocate", code).expect("memory");
    }
    stream.synchronize().expect("healthy");
    (pool, address)
}

#[test]
fn pool_grants_access_and_flags_of_an_address_tell_nothing() {
    let Some(devices) = harness::devices(2) else { return };
    let (here, there) = (Bench::new(devices[0]), Bench::new(devices[1]));
    let mut can = 0;
    let [own, peer] = [&here, &there].map(|bench| bench.context.device().as_raw());
    // SAFETY: the out pointer is valid.
    check("asked", unsafe { ffi::cuDeviceCanAccessPeer(&mut can, own, peer) }).expect("asked");
    if can == 0 {
        println!("skipped: the two devices are no peers");
        return;
    }
    let (from, plain, (pool, pooled)) = (here.memory(BYTES), there.memory(BYTES), pool(&there));
    let stream = here.stream();
    let _bound = here.context.enter().expect("enter");
    let flags_of = |address| {
        let mut flags = 0_u64;
        // SAFETY: the out pointer is valid; 16 is `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`.
        let code = unsafe { ffi::cuPointerGetAttribute((&raw mut flags).cast(), 16, address) };
        check("flags", code).expect("flags");
        flags
    };
    let granted = || {
        let (mut flags, mut location) = (99, [DEVICE, own.cast_unsigned()]);
        // SAFETY: the pool is alive, and the location has the structure's layout.
        let code = unsafe { ffi::cuMemPoolGetAccess(&mut flags, pool, (&raw mut location).cast()) };
        check("granted", code).expect("granted");
        flags
    };
    let copied = |to: u64| {
        // SAFETY: both ranges are owned.
        let code = unsafe { ffi::cuMemcpyDtoDAsync_v2(to, from.address, BYTES, stream.as_raw()) };
        stream.synchronize().expect("healthy");
        code
    };
    assert_eq!([flags_of(plain.address), flags_of(pooled)], [3, 3]);
    assert_eq!(granted(), 0);
    assert_eq!([copied(plain.address), copied(pooled)], [0, INVALID_VALUE]);
    let access = [DEVICE, own.cast_unsigned(), READ_WRITE];
    // SAFETY: the pool is alive, and the words have the structure's layout.
    let code = unsafe { ffi::cuMemPoolSetAccess(pool, access.as_ptr().cast(), 1) };
    check("grant", code).expect("grant");
    assert_eq!((granted(), copied(pooled)), (READ_WRITE, 0));
    let frees = there.stream();
    // SAFETY: nothing uses the memory or the pool any more.
    unsafe {
        check("free", ffi::cuMemFreeAsync(pooled, frees.as_raw())).expect("freed");
        frees.synchronize().expect("healthy");
        check("destroy", ffi::cuMemPoolDestroy(pool)).expect("destroyed");
    }
}
