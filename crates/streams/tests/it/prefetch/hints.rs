//! Prefetch by hints and by plans, checked by the driver's view of residency and by the contents.

use transload_core::{DeviceId, ErrorKind, MemoryKind, Pattern, RawBuffer};
use transload_cuda_sim::{Residency as Page, harness};
use transload_cuda_sys::{
    Capture, CaptureMode,
    trace::{self, Call},
};
use transload_memory::{
    CudaDevice, CudaFeature, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, PrefetchEntry,
    PrefetchPlan, Residency,
};
use transload_streams::CudaStream;

use crate::support::{
    gate::Gate,
    setup::{Setup, noise},
};

/// Large enough for pages of its own on any driver.
const BYTES: usize = 4 << 20;

/// A device with prefetchable unified memory, and such memory with contents.
fn able() -> Option<(Setup, RawBuffer, Vec<u8>)> {
    let setup = Setup::new();
    if !setup.device.supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap() {
        println!("skipped: host and device cannot use unified memory at the same time");
        return None;
    }
    let content = noise(BYTES, 11);
    let buffer = filled(&setup, &content);
    Some((setup, buffer, content))
}

fn filled(setup: &Setup, content: &[u8]) -> RawBuffer {
    let buffer = setup.memory.allocate(MemoryKind::Unified, content.len()).unwrap();
    buffer.write().unwrap().copy_from_slice(content);
    buffer
}

fn last_prefetch(buffer: &RawBuffer) -> Option<MemoryLocation> {
    Residency::of(buffer).unwrap().last_prefetch
}

/// Residency of the page, which only the software driver reports.
fn page(setup: &Setup, buffer: &RawBuffer) -> Option<Page> {
    setup.test.sim().and_then(|sim| sim.residency(buffer.device_address().unwrap()))
}

/// Address and length of each prefetch, by the newer or the older call.
fn prefetches(calls: &[Call]) -> Vec<(u64, u64)> {
    let is_one = |call: &&Call| call.name.starts_with("cuMemPrefetchAsync");
    calls.iter().filter(is_one).map(|call| (call.arguments[0], call.arguments[1])).collect()
}

#[test]
fn range_is_prefetched_by_buffer_and_by_address() {
    let Some((setup, buffer, content)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = MemoryLocation::Device(setup.test.ordinal());
    let address = buffer.device_address().unwrap();
    let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let raw = ManagedMemoryHints::for_buffer(&setup.device, address, BYTES).unwrap();
    for hints in [&owned, &raw] {
        for (to, expected) in
            [(None, there), (Some(MemoryLocation::Host), MemoryLocation::Host), (Some(there), there)]
        {
            hints.prefetch_to(to, &stream).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(hints.residency().unwrap().last_prefetch, Some(expected), "{to:?}");
            let on = match expected {
                MemoryLocation::Device(ordinal) => Page::Device(ordinal),
                _ => Page::Host,
            };
            assert!(page(&setup, &buffer).is_none_or(|page| page == on), "{to:?}");
        }
    }
    assert!(*buffer.read().unwrap() == content[..]);
    drop((owned, raw, buffer, stream));
    setup.finish();
}

#[test]
fn part_of_a_range_is_prefetched_and_an_invalid_one_refused() {
    let Some((setup, buffer, content)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = MemoryLocation::Device(setup.test.ordinal());
    let address = buffer.device_address().unwrap();
    let (first, second) = (buffer.slice(..BYTES / 2).unwrap(), buffer.slice(BYTES / 2..).unwrap());
    let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let raw = ManagedMemoryHints::for_buffer(&setup.device, address, BYTES).unwrap();
    for hints in [&owned, &raw] {
        hints.prefetch_to(MemoryLocation::Host, &stream).unwrap();
        hints.prefetch_range(BYTES / 2, BYTES / 2, None, &stream).unwrap();
        assert_eq!(
            (last_prefetch(&first), last_prefetch(&second)),
            (Some(MemoryLocation::Host), Some(there))
        );
        assert_eq!(last_prefetch(&buffer), None, "the halves differ");
        let kind = |offset, bytes| hints.prefetch_range(offset, bytes, None, &stream).unwrap_err().kind();
        assert_eq!(kind(0, 0), ErrorKind::InvalidArgument);
        assert_eq!(kind(BYTES, 0), ErrorKind::InvalidArgument);
        for (offset, bytes) in [(0, BYTES + 1), (BYTES, 1), (1, BYTES), (usize::MAX, 2), (2, usize::MAX)] {
            assert_eq!(kind(offset, bytes), ErrorKind::OutOfRange, "{offset} {bytes}");
        }
        assert_eq!(last_prefetch(&first), Some(MemoryLocation::Host), "what was refused moved nothing");
    }
    stream.synchronize().unwrap();
    assert!(*buffer.read().unwrap() == content[..]);
    drop((owned, raw, first, second, buffer, stream));
    setup.finish();
}

#[test]
fn invalid_prefetches_are_refused_with_valid_values() {
    let Some((setup, buffer, content)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let address = buffer.device_address().unwrap();
    let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let raw = ManagedMemoryHints::for_buffer(&setup.device, address, BYTES).unwrap();
    for hints in [&owned, &raw] {
        for ordinal in [10_000, u32::MAX, u32::MAX - 1] {
            let error = hints.prefetch_to(MemoryLocation::Device(ordinal), &stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownDevice, "{ordinal}: {error}");
        }
    }
    let other = setup.device(4096);
    let unmanaged =
        ManagedMemoryHints::for_buffer(&setup.device, other.device_address().unwrap(), 4096).unwrap();
    let error = unmanaged.prefetch_to(None, &stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("valid is memory of cuMemAllocManaged"), "{error}");
    let view = buffer.read().unwrap();
    assert_eq!(
        owned.prefetch_to(None, &stream).unwrap_err().kind(),
        ErrorKind::Busy,
        "the host has a view of it"
    );
    drop(view);
    assert_eq!(last_prefetch(&buffer), None);
    owned.prefetch_to(None, &stream).unwrap();
    assert!(*buffer.read().unwrap() == content[..]);
    drop((owned, raw, unmanaged, other, buffer, stream));
    setup.finish();
}

#[test]
fn buffer_prefetch_is_ordered_without_blocking_the_host() {
    let Some((setup, buffer, _)) = able() else { return };
    let (one, two) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let hints = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let gate = Gate::before(&setup.device, &[&one]);
    let fill = one.memset_async(&buffer, Pattern::U8(0x5A));
    hints.prefetch_to(MemoryLocation::Host, &two).unwrap();
    assert!(!two.is_ready().unwrap(), "it waits for the fill, which the gate holds back");
    drop(hints);
    gate.open();
    fill.wait().unwrap();
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 0x5A));
    two.synchronize().unwrap();
    assert!(page(&setup, &buffer).is_none_or(|page| page == Page::Host));
    drop((buffer, one, two));
    setup.finish();
}

#[test]
fn prefetch_goes_to_a_numa_node_if_supported() {
    let Some((setup, buffer, content)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let address = buffer.device_address().unwrap();
    let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let raw = ManagedMemoryHints::for_buffer(&setup.device, address, BYTES).unwrap();
    for hints in [&owned, &raw] {
        match hints.prefetch_to(MemoryLocation::HostNuma(0), &stream) {
            Err(error) if error.kind() == ErrorKind::MissingFunction => println!("skipped: {error}"),
            outcome => {
                outcome.unwrap();
                assert_eq!(last_prefetch(&buffer), Some(MemoryLocation::HostNuma(0)));
                hints.prefetch_to(None, &stream).unwrap();
                hints.prefetch_range(0, BYTES, MemoryLocation::HostNumaCurrent, &stream).unwrap();
                assert!(last_prefetch(&buffer).is_some_and(MemoryLocation::is_host));
                let nowhere = hints.prefetch_to(MemoryLocation::HostNuma(9_999), &stream).unwrap_err();
                assert_eq!(nowhere.kind(), ErrorKind::InvalidArgument, "{nowhere}");
            }
        }
    }
    stream.synchronize().unwrap();
    assert!(*buffer.read().unwrap() == content[..]);
    drop((owned, raw, buffer, stream));
    setup.finish();
}

#[test]
fn address_prefetch_on_a_captured_stream_is_refused() {
    let Some((setup, buffer, _)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let hints =
        ManagedMemoryHints::for_buffer(&setup.device, buffer.device_address().unwrap(), BYTES).unwrap();
    // SAFETY: the only work enqueued is refused.
    let capture = unsafe { Capture::begin(&stream, CaptureMode::ThreadLocal) }.unwrap();
    assert_eq!(hints.prefetch_to(None, &stream).unwrap_err().kind(), ErrorKind::Busy);
    capture.end().expect("the capture is valid to its end");
    hints.prefetch_to(None, &stream).unwrap();
    stream.synchronize().unwrap();
    drop((hints, buffer, stream));
    setup.finish();
}

#[test]
fn plan_is_executed_in_order_with_neighbours_merged() {
    let Some((setup, buffer, content)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let ordinal = setup.test.ordinal().cast_signed();
    let quarter = BYTES / 4;
    let part = |n: usize| buffer.slice(n * quarter..(n + 1) * quarter).unwrap();
    let (base, size) = (buffer.device_address().unwrap(), quarter as u64);
    let at = |n: u64| base + n * size;
    // Two that can be merged, one with another target, one adjacent in memory but not in the plan.
    let order = [(0, ordinal), (1, ordinal), (2, PrefetchEntry::HOST), (3, ordinal)];
    let expected = vec![(at(0), 2 * size), (at(2), size), (at(3), size)];
    let mut owned = PrefetchPlan::new();
    let mut raw = PrefetchPlan::new();
    assert!(owned.is_empty() && owned.execute(&stream).is_ok());
    for (n, to) in order {
        owned.add_buffer(&part(n), to);
        raw.add(PrefetchEntry { ptr: at(n as u64), byte_size: quarter, device_ordinal: to });
    }
    assert_eq!(owned.entries(), raw.entries());
    for plan in [&owned, &raw, &owned] {
        assert_eq!((plan.len(), plan.is_empty()), (4, false));
        let trace = trace::start();
        plan.execute(&stream).unwrap();
        assert_eq!(prefetches(&trace.calls_of_this_thread()), expected);
        let there = Some(MemoryLocation::Device(setup.test.ordinal()));
        let believed: Vec<_> = (0..4).map(|n| last_prefetch(&part(n))).collect();
        assert_eq!(believed, [there, there, Some(MemoryLocation::Host), there]);
        stream.synchronize().unwrap();
    }
    // Neighbours in descending order are merged too, so all four become one.
    let mut backwards = PrefetchPlan::new();
    backwards.add_buffer(&part(3), ordinal).add_buffer(&part(2), ordinal);
    backwards.add_buffer(&part(1), ordinal).add_buffer(&part(0), ordinal);
    let trace = trace::start();
    backwards.execute(&stream).unwrap();
    assert_eq!(prefetches(&trace.calls_of_this_thread()), [(base, BYTES as u64)]);
    assert!(*buffer.read().unwrap() == content[..]);
    drop((owned, raw, backwards, buffer, stream));
    setup.finish();
}

#[test]
fn plan_stops_at_the_first_error_and_names_its_entry() {
    let Some((setup, buffer, content)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let ordinal = setup.test.ordinal().cast_signed();
    let half = BYTES / 2;
    let (first, second) = (buffer.slice(..half).unwrap(), buffer.slice(half..).unwrap());
    let (there, base) = (MemoryLocation::Device(setup.test.ordinal()), buffer.device_address().unwrap());
    let other = setup.device(4096);
    let entry = |ptr, byte_size, device_ordinal| PrefetchEntry { ptr, byte_size, device_ordinal };
    let bad = [
        (entry(base, 0, ordinal), ErrorKind::InvalidArgument),
        (entry(base, usize::MAX, ordinal), ErrorKind::OutOfRange),
        (entry(base, half, 10_000), ErrorKind::UnknownDevice),
        (entry(base, half, -2), ErrorKind::UnknownDevice),
        (entry(other.device_address().unwrap(), 4096, ordinal), ErrorKind::InvalidArgument),
        // It starts where the first one ends, so both are tried together and then one by one.
        (entry(base + half as u64, 1 << 40, ordinal), ErrorKind::InvalidArgument),
    ];
    for (bad, kind) in bad {
        let reset = ManagedMemoryHints::from_unified(&buffer).unwrap();
        reset.prefetch_to(MemoryLocation::Host, &stream).unwrap();
        let mut plan = PrefetchPlan::new();
        plan.add(entry(base, half, ordinal)).add(bad).add(entry(base + half as u64, half, ordinal));
        let error = plan.execute(&stream).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("entry 1 of the plan"), "{error}");
        assert_eq!(last_prefetch(&first), Some(there), "what comes before it is enqueued");
        assert_eq!(last_prefetch(&second), Some(MemoryLocation::Host), "the following one is not");
        stream.synchronize().unwrap();
    }
    let mut plan = PrefetchPlan::new();
    plan.add_buffer(&first, ordinal).add_buffer(&second, ordinal).add_buffer(&other, ordinal);
    let error = plan.execute(&stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().starts_with("entry 2 of the plan"), "{error}");
    let view = second.read().unwrap();
    let error = plan.execute(&stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().starts_with("entry 1 of the plan"), "tried as one, found one by one: {error}");
    drop(view);
    assert!(*buffer.read().unwrap() == content[..]);
    drop((plan, other, first, second, buffer, stream));
    setup.finish();
}

#[test]
fn plan_keeps_its_buffers_alive_until_complete() {
    let Some((setup, buffer, _)) = able() else { return };
    let stream = CudaStream::new(&setup.device).unwrap();
    let mut plan = PrefetchPlan::new();
    plan.add_buffer(&buffer, setup.test.ordinal().cast_signed());
    drop(buffer);
    assert_eq!(setup.memory.resource_counts().allocations, 1, "the plan has it");
    let gate = Gate::before(&setup.device, &[&stream]);
    plan.execute(&stream).unwrap();
    drop(plan);
    assert_eq!(setup.memory.resource_counts().pending_free, 1, "the prefetch has it");
    gate.open();
    drop(stream);
    setup.finish();
}

#[test]
fn memory_moves_between_devices_on_either_ones_streams() {
    let Some(devices) = harness::devices(2) else { return };
    let (near, far) = (devices[0].ordinal(), devices[1].ordinal());
    let open = |ordinal| CudaDevice::new(ordinal).unwrap();
    if ![near, far]
        .map(open)
        .iter()
        .all(|device| device.supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap())
    {
        println!("skipped: host and device cannot use unified memory at the same time");
        return;
    }
    let memory = CudaMemoryManager::new(&open(near)).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    buffer.write().unwrap().fill(3);
    let streams = [near, far].map(|ordinal| CudaStream::new(&open(ordinal)).unwrap());
    let hints = ManagedMemoryHints::from_unified(&buffer).unwrap();
    for stream in &streams {
        hints.prefetch_to(MemoryLocation::Device(far), stream).unwrap();
        assert_eq!(last_prefetch(&buffer), Some(MemoryLocation::Device(far)));
        hints.prefetch_to(None, stream).unwrap();
        assert_eq!(last_prefetch(&buffer), Some(MemoryLocation::Device(near)), "its own device");
        let raw =
            ManagedMemoryHints::for_buffer(&open(near), buffer.device_address().unwrap(), BYTES).unwrap();
        raw.prefetch_to(MemoryLocation::Device(far), stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(last_prefetch(&buffer), Some(MemoryLocation::Device(far)));
    }
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 3));
    assert_eq!(buffer.place().device, DeviceId::Cuda(near), "it is still that device's memory");
    drop((hints, buffer, streams));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    devices.iter().for_each(harness::TestDevice::assert_no_live_objects);
}
