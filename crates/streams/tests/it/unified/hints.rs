//! Prefetch and advice of a buffer, checked by the driver's view afterwards.

use transload_core::{Buffer, DeviceId, RawBuffer};
use transload_cuda_sim::{Residency as Page, harness};
use transload_cuda_sys::{AsStream, trace};
use transload_memory::{MemoryLocation, Residency, UnifiedBuffer, UnifiedMode};
use transload_streams::CudaStream;

use super::{Fixture, for_each_fixture};
use crate::support::setup::Setup;

/// Large enough for pages of its own on any driver.
const COUNT: usize = 1 << 20;

fn last_prefetch(part: &RawBuffer) -> Option<MemoryLocation> {
    Residency::of(part).unwrap().last_prefetch
}

#[test]
fn prefetch_goes_to_its_target_or_the_own_device() {
    for_each_fixture(|fixture| {
        if !fixture.is_managed() {
            return;
        }
        let (own, ordinal) =
            (MemoryLocation::Device(fixture.setup.test.ordinal()), fixture.setup.test.ordinal());
        let buffer = fixture.buffer::<f32>(COUNT);
        let (left, right) =
            (buffer.raw().slice(..COUNT * 2).unwrap(), buffer.raw().slice(COUNT * 2..).unwrap());
        buffer.prefetch_range_to_device(..COUNT / 2, None).wait().unwrap();
        assert_eq!((last_prefetch(&left), last_prefetch(&right)), (Some(own), None), "a range is that range");
        buffer.prefetch_to_host().wait().unwrap();
        assert_eq!(last_prefetch(buffer.raw()), Some(MemoryLocation::Host));
        buffer.prefetch_to_device(Some(ordinal)).wait().unwrap();
        assert_eq!(last_prefetch(buffer.raw()), Some(own));
        buffer.prefetch_range_to_host(COUNT / 2..).wait().unwrap();
        assert_eq!((last_prefetch(&left), last_prefetch(&right)), (Some(own), Some(MemoryLocation::Host)));
        if let Some(sim) = fixture.setup.test.sim() {
            assert_eq!(sim.residency(left.device_address().unwrap()), Some(Page::Device(ordinal)));
            assert_eq!(sim.residency(right.device_address().unwrap()), Some(Page::Host));
        }
        drop((left, right, buffer));
    });
}

#[test]
fn a_prefetch_runs_on_the_stream_that_it_was_given() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<f32>(COUNT);
        buffer.write().unwrap().fill(1.0);
        let other = CudaStream::new(&fixture.setup.device).unwrap();
        let handles = |prefetch: &dyn Fn()| {
            let trace = trace::start();
            prefetch();
            let moves = |name: &str| name.starts_with("cuMemPrefetchAsync") || name.contains("MemcpyDtoH");
            let calls = trace.calls_of_this_thread();
            calls.iter().filter(|call| moves(call.name)).map(|call| *call.arguments.last().unwrap()).collect()
        };
        let (own, given) = (fixture.stream.as_raw().addr() as u64, other.as_raw().addr() as u64);
        let there: Vec<u64> = handles(&|| drop(buffer.prefetch_to_device_on(&other, 5.., None)));
        assert_eq!(there, vec![given; usize::from(fixture.is_managed())], "{fixture}");
        let back: Vec<u64> = handles(&|| drop(buffer.prefetch_to_host_on(&other, ..)));
        assert_eq!(back, [given], "{fixture}");
        let back: Vec<u64> = handles(&|| drop(buffer.prefetch_to_host()));
        assert_eq!(back, [own], "{fixture}");
        assert!(buffer.read().unwrap().iter().all(|number| *number == 1.0), "{fixture}");
        drop((buffer, other));
    });
}

#[test]
fn several_devices_are_advised_on_one_buffer() {
    let Some(devices) = harness::devices(2) else { return };
    let [one, two] = devices[..] else { panic!("two devices") };
    let (fixture, neighbour) = (Setup::on(one), Setup::on(two));
    if UnifiedMode::of(&fixture.device).unwrap() == UnifiedMode::Explicit {
        println!("skipped: the device has no concurrent access to unified memory");
        return;
    }
    let fixture = Fixture::new("the first of two devices", fixture, UnifiedMode::Managed);
    let buffer: UnifiedBuffer<f32> = fixture.buffer(COUNT);
    let (here, there) = (MemoryLocation::Device(one.ordinal()), MemoryLocation::Device(two.ordinal()));
    buffer.set_accessed_by(one.ordinal()).unwrap();
    buffer.set_accessed_by(two.ordinal()).unwrap();
    let believed = || buffer.hints().unwrap().residency().unwrap();
    assert!(believed().accessed_by.contains(&here) && believed().accessed_by.contains(&there));
    buffer.set_preferred_location(DeviceId::Cuda(two.ordinal())).unwrap();
    assert_eq!(believed().preferred, Some(there));
    buffer.set_preferred_location(DeviceId::Cpu).unwrap();
    assert_eq!(believed().preferred, Some(MemoryLocation::Host));
    buffer.write().unwrap().fill(3.0);
    buffer.prefetch_to_device(Some(two.ordinal())).wait().unwrap();
    assert_eq!(believed().last_prefetch, Some(there));
    assert!(buffer.read().unwrap().iter().all(|number| *number == 3.0));
    drop(buffer);
    fixture.finish();
    neighbour.finish();
}
