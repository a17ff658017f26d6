//! The race checker: missing waits are reported for any execution order, ordered work never is.

use transload_core::host_access::{self, HostAccess};
use transload_cuda_sim::{AccessKind, Actor, harness};
use transload_cuda_sys::{AsStream, Event, EventTiming, check, ffi};

use crate::raw::{Bench, download, fill, upload};

fn bench() -> Option<Bench> {
    harness::device_with(|builder| builder.record_accesses(true)).map(Bench::unchecked)
}

#[test]
fn a_missing_wait_between_streams_names_both_operations() {
    let Some(bench) = bench() else { return };
    let (producer, consumer) = (bench.stream(), bench.stream());
    let memory = bench.memory(4096);
    let target = bench.pinned(4096);
    fill(&producer, memory.address, 1, 4096).expect("fill");
    // For any execution order, and whether the content comes out right or not:
    download(&consumer, &target, 0, memory.address + 1024, 1024).expect("down");
    bench.context.synchronize().expect("healthy");
    let races = bench.device.sim().expect("simulated").races();
    assert_eq!(races.len(), 1, "{races:?}");
    assert_eq!(races[0].first.operation, "cuMemsetD8Async");
    assert_eq!(races[0].second.operation, "cuMemcpyDtoHAsync_v2");
    assert_eq!((races[0].second.address, races[0].second.bytes), (memory.address + 1024, 1024));
    assert!(races[0].to_string().contains("cuMemsetD8Async (#"), "{}", races[0]);
}

#[test]
fn an_event_orders_two_streams() {
    let Some(bench) = bench() else { return };
    let (producer, consumer) = (bench.stream(), bench.stream());
    let memory = bench.memory(4096);
    let target = bench.pinned(4096);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    fill(&producer, memory.address, 1, 4096).expect("fill");
    event.record(&producer).expect("record");
    consumer.wait_event(&event).expect("wait");
    download(&consumer, &target, 0, memory.address, 4096).expect("down");
    event.record(&consumer).expect("record");
    producer.wait_event(&event).expect("wait");
    fill(&producer, memory.address, 2, 4096).expect("fill");
    bench.device.assert_no_races();
    bench.context.synchronize().expect("healthy");
    drop((memory, target));
    bench.device.assert_no_races();
}

#[test]
fn work_after_the_record_is_not_ordered_by_it() {
    let Some(bench) = bench() else { return };
    let (producer, consumer) = (bench.stream(), bench.stream());
    let memory = bench.memory(4096);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    event.record(&producer).expect("record");
    fill(&producer, memory.address, 1, 4096).expect("fill after the record");
    consumer.wait_event(&event).expect("wait");
    fill(&consumer, memory.address, 2, 4096).expect("fill");
    bench.context.synchronize().expect("healthy");
    assert_eq!(bench.device.sim().expect("simulated").races().len(), 1);
}

#[test]
fn the_host_must_wait_before_it_reuses_a_staging_slot() {
    for waits in [false, true] {
        let Some(bench) = bench() else { return };
        let stream = bench.stream();
        let memory = bench.memory(4096);
        let slot = bench.pinned(4096);
        host_access::note(slot.address(), 4096, HostAccess::Write);
        upload(&stream, memory.address, &slot, 0, 4096).expect("up");
        let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
        event.record(&stream).expect("record");
        if waits {
            event.synchronize().expect("healthy");
        }
        host_access::note(slot.address(), 4096, HostAccess::Write);
        let races = bench.device.sim().expect("simulated").races();
        if waits {
            assert_eq!(races, Vec::new());
        } else {
            assert_eq!(races.len(), 1);
            assert_eq!(races[0].first.operation, "cuMemcpyHtoDAsync_v2");
            assert!(matches!(races[0].second.actor, Actor::Host(_)), "{}", races[0]);
        }
        bench.context.synchronize().expect("healthy");
    }
}

#[test]
fn concurrent_reads_are_no_race() {
    let Some(bench) = bench() else { return };
    let (one, two) = (bench.stream(), bench.stream());
    let memory = bench.memory(4096);
    let slot = bench.pinned(4096);
    upload(&one, memory.address, &slot, 0, 2048).expect("up");
    upload(&two, memory.address + 2048, &slot, 0, 2048).expect("up, from the same source to elsewhere");
    host_access::note(slot.address(), 4096, HostAccess::Read);
    bench.device.assert_no_races();
    bench.context.synchronize().expect("healthy");
}

#[test]
fn only_successful_query_orders_the_host() {
    let Some(bench) = bench() else { return };
    let stream = bench.stream();
    let memory = bench.memory(4096);
    let target = bench.pinned(4096);
    download(&stream, &target, 0, memory.address, 4096).expect("down");
    while !stream.is_idle().expect("healthy") {}
    host_access::note(target.address(), 4096, HostAccess::Read);
    bench.device.assert_no_races();
}

#[test]
fn the_default_stream_orders_blocking_streams_only() {
    for blocking in [true, false] {
        let Some(bench) = bench() else { return };
        let stream = if blocking { bench.blocking_stream() } else { bench.stream() };
        let memory = bench.memory(64);
        let _bound = bench.context.enter().expect("enter");
        // SAFETY: the memory is owned.
        check("fill", unsafe { ffi::cuMemsetD8_v2(memory.address, 1, 64) }).expect("fill");
        fill(&stream, memory.address, 2, 64).expect("fill");
        bench.context.synchronize().expect("healthy");
        let found = bench.device.sim().expect("simulated").races().len();
        assert_eq!(found, usize::from(!blocking));
    }
}

#[test]
fn a_stream_ordered_free_without_a_wait_is_a_conflict() {
    let Some(bench) = bench() else { return };
    let (owner, reader) = (bench.stream(), bench.stream());
    let _bound = bench.context.enter().expect("enter");
    let target = bench.pinned(64);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    let mut address = 0;
    // SAFETY: the out pointer is valid.
    check("alloc", unsafe { ffi::cuMemAllocAsync(&mut address, 64, owner.as_raw()) }).expect("alloc");
    event.record(&owner).expect("record");
    reader.wait_event(&event).expect("wait");
    download(&reader, &target, 0, address, 64).expect("down");
    bench.device.assert_no_races();
    // SAFETY: the memory is alive; that the free does not wait for the reader is what is tested.
    check("free", unsafe { ffi::cuMemFreeAsync(address, owner.as_raw()) }).expect("free");
    let races = bench.device.sim().expect("simulated").races();
    assert_eq!(races.len(), 1);
    assert_eq!(
        (races[0].first.operation, races[0].second.operation),
        ("cuMemcpyDtoHAsync_v2", "cuMemFreeAsync")
    );
}

#[test]
fn a_host_function_acts_in_its_streams_place() {
    unsafe extern "C" fn touch(data: *mut std::ffi::c_void) {
        host_access::note(data.addr(), 64, HostAccess::Write);
    }
    let Some(bench) = bench() else { return };
    let (stream, other) = (bench.stream(), bench.stream());
    let memory = bench.memory(64);
    let slot = bench.pinned(64);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    // SAFETY: the slot outlives the work.
    let launched = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(touch), slot.pointer().cast()) };
    check("launch", launched).expect("launch");
    upload(&stream, memory.address, &slot, 0, 64).expect("behind it in the same stream");
    event.record(&stream).expect("record");
    other.wait_event(&event).expect("wait");
    upload(&other, memory.address, &slot, 0, 64).expect("ordered by the event");
    bench.context.synchronize().expect("healthy");
    bench.device.assert_no_races();
}

#[test]
fn host_learns_what_host_function_knew() {
    use std::sync::atomic::{AtomicBool, Ordering};
    unsafe extern "C" fn tell(data: *mut std::ffi::c_void) {
        // SAFETY: the data is a flag that outlives the stream's work.
        unsafe { &*data.cast::<AtomicBool>() }.store(true, Ordering::Release);
    }
    let Some(bench) = bench() else { return };
    let stream = bench.stream();
    let memory = bench.memory(64);
    let slot = bench.pinned(64);
    let told = AtomicBool::new(false);
    download(&stream, &slot, 0, memory.address, 64).expect("down");
    // SAFETY: the flag lives until the context is synchronised below.
    let launched =
        unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(tell), (&raw const told).cast_mut().cast()) };
    check("launch", launched).expect("launch");
    for value in 0..20 {
        fill(&stream, memory.address, value, 64).expect("fill");
    }
    while !told.load(Ordering::Acquire) {
        assert_eq!(stream.is_idle(), Ok(false), "the queries alone must not order the host behind the copy");
    }
    host_access::note(slot.address(), 64, HostAccess::Read);
    bench.device.assert_no_races();
    host_access::note(memory.address as usize, 1, HostAccess::Read);
    assert!(!bench.device.sim().expect("simulated").races().is_empty(), "the fills are not known to be done");
    bench.context.synchronize().expect("healthy");
}

#[test]
fn access_records_name_originator_and_range() {
    let Some(bench) = bench() else { return };
    let stream = bench.stream();
    let memory = bench.memory(128);
    let slot = bench.pinned(128);
    upload(&stream, memory.address + 8, &slot, 16, 100).expect("up");
    let records = bench.device.sim().expect("simulated").accesses();
    let seen: Vec<_> =
        records.iter().map(|record| (record.operation, record.address, record.bytes, record.kind)).collect();
    assert_eq!(
        seen,
        [
            ("cuMemcpyHtoDAsync_v2", slot.address() as u64 + 16, 100, AccessKind::Read),
            ("cuMemcpyHtoDAsync_v2", memory.address + 8, 100, AccessKind::Write),
        ]
    );
    assert!(matches!(records[0].actor, Actor::Stream { device, .. } if device == bench.device.ordinal()));
    stream.synchronize().expect("healthy");
}

#[test]
fn nothing_is_recorded_by_default() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let memory = bench.memory(64);
    fill(&bench.stream(), memory.address, 1, 64).expect("fill");
    fill(&bench.stream(), memory.address, 2, 64).expect("fill");
    bench.context.synchronize().expect("healthy");
    let sim = bench.device.sim().expect("simulated");
    assert_eq!((sim.accesses(), sim.races()), (Vec::new(), Vec::new()));
}
