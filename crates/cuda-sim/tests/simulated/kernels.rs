//! Kernels run as Rust host kernels, which declare the memory that they access.

use std::ptr;

use transload_cuda_sim::harness::noise;
use transload_cuda_sim::{
    AccessKind, HostKernel, IllegalAddress, KernelAccess, KernelMemory, Launch, harness, register_host_kernel,
};
use transload_cuda_sys::{AsStream, Stream, check, cust::sys::CUfunction, ffi};

use crate::raw::{Bench, INVALID_HANDLE, code, contents, fill, upload};

const PTX: &[u8] =
    b".version 7.0\n.target sm_52\n.visible .entry test_copy(\n  .param .u64 from\n) { ret; }\n\0";
const UNKNOWN: &[u8] = b".version 7.0\n.target sm_52\n.visible .entry nobody_knows_it( ) { ret; }\n\0";

fn accesses(launch: &Launch, _: &KernelMemory<'_>) -> Vec<KernelAccess> {
    let bytes = launch.number(2) as usize;
    vec![
        KernelAccess { address: launch.number(0), bytes, kind: AccessKind::Read },
        KernelAccess { address: launch.number(1), bytes, kind: AccessKind::Write },
    ]
}

fn run(launch: &Launch, memory: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    memory.copy(launch.number(0), launch.number(1), launch.number(2) as usize + launch.number(3) as usize)
}

/// A module with the kernel `test_copy(from, to, bytes, beyond)`.
pub(crate) fn load(bench: &Bench) -> CUfunction {
    register_host_kernel("test_copy", HostKernel { parameters: &[8, 8, 8, 4], accesses, run });
    let _bound = bench.context.enter().expect("enter");
    let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the image ends with NUL, as the name does; the out pointers are valid.
    unsafe {
        check("load", ffi::cuModuleLoadData(&mut module, PTX.as_ptr().cast())).expect("load");
        check("function", ffi::cuModuleGetFunction(&mut function, module, c"test_copy".as_ptr()))
            .expect("function");
        assert_eq!(ffi::cuModuleGetFunction(&mut ptr::null_mut(), module, c"other".as_ptr()), 500);
    }
    function
}

pub(crate) fn launch(
    function: CUfunction,
    stream: &Stream,
    from: u64,
    to: u64,
    bytes: u64,
    beyond: u32,
) -> u32 {
    let _bound = stream.context().enter().expect("enter");
    let parameters = [
        (&raw const from).cast(),
        (&raw const to).cast(),
        (&raw const bytes).cast(),
        (&raw const beyond).cast(),
    ];
    let mut parameters = parameters.map(|parameter: *const std::ffi::c_void| parameter.cast_mut());
    // SAFETY: the parameters are as the kernel declares them.
    unsafe {
        ffi::cuLaunchKernel(
            function,
            1,
            1,
            1,
            128,
            1,
            1,
            0,
            stream.as_raw(),
            parameters.as_mut_ptr(),
            ptr::null_mut(),
        )
    }
}

#[test]
fn a_kernel_runs_in_its_place_and_reads_mapped_memory() {
    let Some(test) = harness::device_with(|builder| builder.record_accesses(true)) else { return };
    let bench = Bench::new(test);
    let function = load(&bench);
    let stream = bench.stream();
    let memory = bench.memory(10_000);
    let mut mapped = bench.pinned(10_000);
    mapped.set(&noise(10_000, 4));
    fill(&stream, memory.address, 0, 10_000).expect("fill");
    check("launch", launch(function, &stream, mapped.address() as u64, memory.address, 9_999, 0))
        .expect("launch");
    let queued = test.sim().map_or(0, |sim| sim.queued());
    assert!((1..=2).contains(&queued), "it is late like everything else, but loading its module waits");
    let seen = contents(&bench, memory.address, 10_000);
    assert_eq!(seen[..9_999], noise(10_000, 4)[..9_999]);
    assert_eq!(seen[9_999], 0);
    let operations: Vec<_> =
        test.sim().expect("simulated").accesses().iter().map(|record| record.operation).collect();
    assert!(operations.contains(&"cuLaunchKernel"), "{operations:?}");
    test.assert_no_races();
    assert_eq!(test.sim().expect("simulated").live_objects().modules, 1);
}

#[test]
fn kernel_access_outside_declared_ranges_is_sticky_error() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let function = load(&bench);
    let stream = bench.stream();
    let (from, to) = (bench.memory(4096), bench.memory(4096));
    check("launch", launch(function, &stream, from.address, to.address, 64, 1)).expect("launch");
    assert_eq!(code(stream.synchronize()), 700);
}

#[test]
fn kernel_needs_pageable_access_for_pageable_memory() {
    for able in [false, true] {
        let Some(test) = harness::device_with(|builder| builder.pageable_access(able)) else { return };
        let bench = Bench::new(test);
        let function = load(&bench);
        let stream = bench.stream();
        let to = bench.memory(64);
        let ordinary = noise(64, 6);
        let from = ordinary.as_ptr().expose_provenance() as u64;
        check("launch", launch(function, &stream, from, to.address, 64, 0)).expect("launch");
        assert_eq!(stream.synchronize().is_ok(), able);
        if able {
            assert_eq!(contents(&bench, to.address, 64), ordinary);
        }
    }
}

#[test]
fn an_unknown_module_is_refused() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let _bound = bench.context.enter().expect("enter");
    let mut module = ptr::null_mut();
    // SAFETY: the images end with NUL; the out pointer is valid.
    unsafe {
        assert_eq!(ffi::cuModuleLoadData(&mut module, UNKNOWN.as_ptr().cast()), 209);
        assert_eq!(ffi::cuModuleLoadData(&mut module, c"this is no module".as_ptr().cast()), 218);
        assert_eq!(ffi::cuModuleLoadData(&mut module, [0x7F_u8, b'E', b'L', b'F', 0].as_ptr().cast()), 209);
    }
    assert!(module.is_null());
}

#[test]
fn a_kernel_is_not_launched_on_another_devices_stream() {
    let Some(devices) = harness::devices(2) else { return };
    if !devices[0].is_simulated() {
        return;
    }
    let (here, there) = (Bench::new(devices[0]), Bench::new(devices[1]));
    let function = load(&here);
    assert_eq!(launch(function, &there.stream(), 0, 0, 0, 0), INVALID_HANDLE);
}

#[test]
fn a_kernel_reads_a_peers_memory_only_when_access_is_enabled() {
    for enabled in [false, true] {
        let Some(devices) = harness::devices(2) else { return };
        if !devices[0].is_simulated() {
            return;
        }
        let (here, there) = (Bench::new(devices[0]), Bench::new(devices[1]));
        let function = load(&here);
        let (from, to) = (there.memory(512), here.memory(512));
        let mut source = there.pinned(512);
        source.set(&noise(512, 12));
        let sender = there.stream();
        upload(&sender, from.address, &source, 0, 512).expect("up");
        sender.synchronize().expect("healthy");
        if enabled {
            let _bound = here.context.enter().expect("enter");
            // SAFETY: the handle is a context's.
            let answer = unsafe { ffi::cuCtxEnablePeerAccess(there.context.as_raw(), 0) };
            check("enable", answer).expect("enable");
        }
        let stream = here.stream();
        check("launch", launch(function, &stream, from.address, to.address, 512, 0)).expect("launch");
        if enabled {
            assert_eq!(contents(&here, to.address, 512), noise(512, 12));
        } else {
            assert_eq!(code(stream.synchronize()), 700);
        }
    }
}

#[test]
fn a_function_tells_its_parameters_limits_and_occupancy() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let function = load(&bench);
    let _bound = bench.context.enter().expect("enter");
    let told = |index| {
        let (mut offset, mut size) = (usize::MAX, usize::MAX);
        // SAFETY: the function is live and the out pointers are valid.
        let answer = unsafe { ffi::cuFuncGetParamInfo(function, index, &mut offset, &mut size) };
        (answer, offset, size)
    };
    assert_eq!([0, 1, 2, 3].map(told), [(0, 0, 8), (0, 8, 8), (0, 16, 8), (0, 24, 4)]);
    assert_eq!(told(4), (1, usize::MAX, usize::MAX), "there are four");
    let attribute = |number| {
        let mut value = -7;
        // SAFETY: as above.
        let answer = unsafe { ffi::cuFuncGetAttribute(&mut value, number, function) };
        (answer, value)
    };
    assert_eq!([0, 8, 99].map(attribute), [(0, 1024), (0, 49_152), (1, -7)]);
    let fit = |threads, shared| {
        let mut blocks = -7;
        // SAFETY: as above.
        let answer = unsafe {
            ffi::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared)
        };
        (answer, blocks)
    };
    assert_eq!(
        [(256, 0), (32, 0), (256, 49_152), (2048, 0)].map(|(t, s)| fit(t, s)),
        [(0, 8), (0, 32), (0, 4), (0, 0)]
    );
    assert_eq!(fit(0, 0), (1, -7));
}

#[test]
fn access_flags_of_a_pointer_say_read_and_write_whoever_asks() {
    let Some(devices) = harness::devices(2) else { return };
    if !devices[0].is_simulated() {
        return;
    }
    let (here, there) = (Bench::new(devices[0]), Bench::new(devices[1]));
    let (own, theirs) = (here.memory(64), there.memory(64));
    let _bound = here.context.enter().expect("enter");
    let flags = |address| {
        let mut flags = u64::MAX << 32;
        // SAFETY: the out pointer has room for the answer of 4 bytes.
        let answer = unsafe { ffi::cuPointerGetAttribute((&raw mut flags).cast(), 16, address) };
        (answer, flags as u32)
    };
    assert_eq!((flags(own.address), flags(theirs.address)), ((0, 3), (0, 3)));
    assert_eq!(flags(12).0, 1, "no memory at all");
}
