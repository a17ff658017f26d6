//! Managed memory: residency follows prefetches and accesses; advice is stored.

use transload_core::host_access::{self, HostAccess};
use transload_cuda_sim::{Residency, harness};
use transload_cuda_sys::{AsStream, check, ffi};

use crate::raw::{Bench, INVALID_VALUE, fill};

fn managed(bench: &Bench, bytes: usize) -> u64 {
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    check("managed", unsafe { ffi::cuMemAllocManaged(&mut address, bytes, 1) }).expect("managed");
    address
}

#[test]
fn a_prefetch_moves_pages_in_stream_order() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let sim = *test.sim().expect("simulated");
    let bench = Bench::new(test);
    let stream = bench.stream();
    let bytes = 256 << 10;
    let address = managed(&bench, bytes);
    let _bound = bench.context.enter().expect("enter");
    assert_eq!(sim.residency(address), Some(Residency::Unpopulated));
    let device = bench.context.device().as_raw();
    // SAFETY: the range is managed memory.
    let there = unsafe { ffi::cuMemPrefetchAsync(address, bytes / 2, device, stream.as_raw()) };
    check("prefetch", there).expect("prefetch");
    assert_eq!(sim.residency(address), Some(Residency::Unpopulated), "it is late");
    stream.synchronize().expect("healthy");
    assert_eq!(sim.residency(address), Some(Residency::Device(sim.ordinal())));
    assert_eq!(sim.residency(address + bytes as u64 / 2), Some(Residency::Unpopulated));
    host_access::note(address as usize, 1, HostAccess::Read);
    assert_eq!(sim.residency(address), Some(Residency::Host), "a touch brings a page back");
    assert_eq!(sim.residency(address + 65_536), Some(Residency::Device(sim.ordinal())));
    let location = ffi::MemLocation { kind: 2, id: 0 };
    // SAFETY: as above.
    check("back", unsafe { ffi::cuMemPrefetchAsync_v2(address, bytes, location, 0, stream.as_raw()) })
        .expect("back");
    stream.synchronize().expect("healthy");
    assert_eq!(sim.residency(address + 65_536), Some(Residency::Host));
    let mut last = 7_i32;
    // SAFETY: the attribute is one 32-bit number.
    let asked = unsafe { ffi::cuMemRangeGetAttribute((&raw mut last).cast(), 4, 4, address, bytes) };
    check("last prefetch", asked).expect("asked");
    assert_eq!(last, -1, "the host");
    let memory = bench.memory(64);
    // SAFETY: the memory is owned; that it cannot be prefetched is what is tested.
    let refused = unsafe { ffi::cuMemPrefetchAsync(memory.address, 64, device, stream.as_raw()) };
    assert_eq!(refused, INVALID_VALUE);
    assert_eq!(sim.live_objects().managed, 1);
}

#[test]
fn advice_is_kept_by_the_range() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let bytes = 256 << 10;
    let address = managed(&bench, bytes);
    let _bound = bench.context.enter().expect("enter");
    let device = bench.context.device().as_raw();
    let ask = |attribute, start, bytes| {
        let mut value = 0_i32;
        // SAFETY: attributes 1, 2 and 4 are one 32-bit number.
        let answer =
            unsafe { ffi::cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, start, bytes) };
        check("cuMemRangeGetAttribute", answer).map(|()| value)
    };
    assert_eq!((ask(1, address, bytes), ask(2, address, bytes)), (Ok(0), Ok(-2)));
    // SAFETY: the range is managed memory.
    unsafe {
        check("mostly", ffi::cuMemAdvise(address, bytes, 1, device)).expect("mostly");
        check("preferred", ffi::cuMemAdvise(address, bytes / 2, 3, device)).expect("preferred");
        check("accessed", ffi::cuMemAdvise(address, bytes, 5, -1)).expect("accessed");
    }
    assert_eq!(ask(1, address, bytes), Ok(1));
    assert_eq!(ask(2, address, bytes / 2), Ok(device));
    assert_eq!(ask(2, address, bytes), Ok(-2), "the halves disagree");
    let mut accessed = [0_i32; 2];
    // SAFETY: attribute 3 is as many 32-bit numbers as the size says.
    let asked = unsafe { ffi::cuMemRangeGetAttribute(accessed.as_mut_ptr().cast(), 8, 3, address, bytes) };
    check("accessed by", asked).expect("asked");
    assert_eq!(accessed, [-1, -2]);
    assert!(ask(1, address, bytes + 1).is_err(), "beyond the allocation");
}

#[test]
fn pre_pascal_device_refuses_prefetch_and_host_access() {
    let Some(test) = harness::device_with(|builder| builder.pre_pascal()) else { return };
    let sim = *test.sim().expect("simulated");
    let bench = Bench::new(test);
    let stream = bench.stream();
    let address = managed(&bench, 4096);
    let _bound = bench.context.enter().expect("enter");
    let device = bench.context.device().as_raw();
    // SAFETY: the range is managed memory.
    assert_eq!(unsafe { ffi::cuMemPrefetchAsync(address, 4096, device, stream.as_raw()) }, 101);
    host_access::note(address as usize, 8, HostAccess::Write);
    assert_eq!(sim.forbidden_accesses(), Vec::<usize>::new(), "the device is idle");
    let memory = bench.memory(64);
    fill(&stream, memory.address, 1, 64).expect("fill");
    host_access::note(address as usize, 8, HostAccess::Write);
    assert_eq!(sim.forbidden_accesses(), vec![address as usize], "the device is busy");
}

#[test]
fn a_device_without_managed_memory_says_so() {
    let Some(test) = harness::device_with(|builder| builder.managed_memory(false)) else { return };
    let bench = Bench::new(test);
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    assert_eq!(unsafe { ffi::cuMemAllocManaged(&mut address, 64, 1) }, 801);
}

#[test]
fn advice_by_location_is_returned_as_location() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let bytes = 64 << 10;
    let address = managed(&bench, bytes);
    let _bound = bench.context.enter().expect("enter");
    let device = bench.context.device().as_raw();
    let ask = |attribute, from, bytes| {
        let mut value = 0_i32;
        // SAFETY: these attributes are one 32-bit number.
        let answer =
            unsafe { ffi::cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, from, bytes) };
        check("cuMemRangeGetAttribute", answer).map(|()| value).expect("asked")
    };
    // SAFETY: the range is managed memory; what is not valid is refused.
    let advise = |advice, kind, id| unsafe {
        ffi::cuMemAdvise_v2(address, bytes, advice, ffi::MemLocation { kind, id })
    };
    assert_eq!((ask(5, address, bytes), ask(7, address, bytes)), (0, 0), "nothing yet");
    assert_eq!(advise(3, 1, device), 0);
    assert_eq!((ask(2, address, bytes), ask(5, address, bytes), ask(6, address, bytes)), (device, 1, device));
    assert_eq!(advise(3, 3, 0), 0);
    assert_eq!(
        (ask(2, address, bytes), ask(5, address, bytes), ask(6, address, bytes)),
        (-1, 3, 0),
        "a node"
    );
    assert_eq!(advise(3, 4, 77), 0, "the number of the current node is not looked at");
    assert_eq!((ask(5, address, bytes), ask(6, address, bytes)), (3, 0));
    assert_eq!(advise(3, 2, 77), 0);
    assert_eq!(ask(5, address, bytes), 2, "the host");
    // An accessor is a device or the host; this node, device, type or advice does not exist.
    for (advice, kind, id) in [(5, 3, 0), (6, 4, 0), (3, 3, 9), (3, 5, 0), (3, 0, 0), (7, 2, 0)] {
        assert_eq!(advise(advice, kind, id), INVALID_VALUE, "{advice} {kind} {id}");
    }
    assert_eq!(advise(3, 1, 10_000), 101);
    assert_eq!(advise(4, 0, -5), 0, "taking back looks at no place");
    let to = |kind, id, flags| {
        let location = ffi::MemLocation { kind, id };
        // SAFETY: the range is managed memory.
        unsafe { ffi::cuMemPrefetchAsync_v2(address, 4096, location, flags, stream.as_raw()) }
    };
    assert_eq!(to(1, device, 0), 0);
    assert_eq!((ask(7, address, 4096), ask(8, address, 4096)), (1, device));
    assert_eq!(ask(7, address, bytes), 0, "the first page of the host's only");
    assert_eq!(to(3, 0, 0), 0);
    assert_eq!((ask(4, address, 4096), ask(7, address, 4096), ask(8, address, 4096)), (-1, 3, 0));
    assert_eq!((to(2, 0, 1), to(3, 9, 0)), (INVALID_VALUE, INVALID_VALUE));
    stream.synchronize().expect("healthy");
}

#[test]
fn migrations_and_faults_are_counted_page_by_page() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let sim = *test.sim().expect("simulated");
    let bench = Bench::new(test);
    let stream = bench.stream();
    let bytes = 256 << 10;
    let address = managed(&bench, bytes);
    let whole = address..address + bytes as u64;
    let _bound = bench.context.enter().expect("enter");
    let counts = || {
        let counts = sim.migrations(whole.clone()).expect("managed");
        [counts.to_device, counts.to_host, counts.gpu_faults, counts.cpu_faults]
    };
    assert_eq!(counts(), [0; 4]);
    host_access::note(address as usize, bytes, HostAccess::Write);
    assert_eq!(counts(), [0, 0, 0, 4], "the first touch faults and moves nothing");
    let device = bench.context.device().as_raw();
    // SAFETY: the range is managed memory.
    let there = unsafe { ffi::cuMemPrefetchAsync(address, bytes, device, stream.as_raw()) };
    check("prefetch", there).expect("prefetch");
    assert_eq!(counts(), [0, 0, 0, 4], "it is late");
    stream.synchronize().expect("healthy");
    assert_eq!(counts(), [4, 0, 0, 4], "a prefetch moves without a fault");
    host_access::note(address as usize + 70_000, 1, HostAccess::Read);
    assert_eq!(counts(), [4, 1, 0, 5]);
    let first = sim.migrations(address..address + 1).expect("managed");
    assert_eq!((first.to_device, first.to_host), (1, 0));
    assert_eq!(sim.migrations(1..2), None);
}
