//! Events of other code whose driver fails, on the software driver only.

use std::thread;

use transload::cuda::{CudaBackendConfig, CudaStream};
use transload_cuda_sim::harness;
use transload_cuda_sys::{Event, EventTiming, trace};

use crate::stream_gate::{Gate, limited};

#[test]
fn concurrent_fence_of_an_event_uses_a_kept_stream() {
    limited(|| {
        let Some(test) = harness::device_with(|builder| builder) else { return };
        let _end = test.end_check();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        let rt = crate::uncalibrated::builder().cuda(config).discover().unwrap();
        let (gpu, sim) = (&rt.cuda(test.ordinal()).unwrap(), test.sim().unwrap());
        let (idle, blocked) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let event_on = |stream: &CudaStream| {
            let event = Event::new(gpu.device().context().unwrap(), EventTiming::Disabled).unwrap();
            event.record(stream.driver()).unwrap();
            event
        };
        // SAFETY: the event is alive.
        let fence_of = |event: &Event| unsafe { gpu.fence_of_event(event.as_raw() as usize) }.unwrap();
        let gate = Gate::before(gpu.device(), &[&blocked]);
        let late = fence_of(&event_on(&blocked));
        fence_of(&event_on(&idle)).wait().unwrap();
        let (event, other) = (event_on(&idle), event_on(&idle));
        // A query that fails waits for the stream, the blocked one.
        sim.fail_call(Some("cuEventQuery"), 1, 2);
        let before = sim.calls();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| fence_of(&other).wait().unwrap());
            while sim.calls() == before {
                thread::yield_now();
            }
            let trace = trace::start();
            fence_of(&event).wait().unwrap();
            let calls = trace.calls_of_this_thread();
            assert!(calls.iter().all(|call| !call.name.starts_with("cuStreamCreate")), "{calls:?}");
            drop(trace);
            assert!(!waiting.is_finished() && !late.is_known_complete());
            gate.open();
        });
        drop((idle, blocked, late, event, other));
        rt.drain().unwrap();
    });
}
