//! Metrics: exact counts always, times only if wanted.

use std::num::NonZeroU32;

use transload_core::{Operation, Pattern, Queue, Timing, submit};
use transload_streams::{CudaStream, MetricsSampling, StreamMetrics};

use crate::support::setup::Setup;

fn counts(metrics: &StreamMetrics) -> [u64; 3] {
    [metrics.operations_count, metrics.memory_transfers, metrics.kernel_launches]
}

#[test]
fn metrics_count_by_default_and_record_no_event() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&[1; 64]), setup.device(64));
    assert_eq!(counts(&stream.metrics()), [0; 3]);
    let trace = transload_cuda_sys::trace::start();
    drop(stream.memset_async(&there, Pattern::U8(1)));
    drop(stream.copy_from_host_async(&host, &there));
    stream.record_kernel_launch();
    stream.update_peak_memory(100);
    assert_eq!(counts(&stream.metrics()), [3, 1, 1]);
    let calls = trace.calls_of_this_thread();
    assert!(calls.iter().all(|call| !call.name.starts_with("cuEvent")), "{calls:?}");
    stream.synchronize().unwrap();
    let metrics = stream.metrics();
    assert_eq!((metrics.sampling, metrics.timed_operations), (MetricsSampling::Off, 0));
    assert_eq!((metrics.total_time, metrics.average_latency), (None, None));
    assert_eq!(metrics.peak_memory, Some(100));
}

#[test]
fn fences_callbacks_and_refused_operations_do_not_count() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&[1; 64]), setup.device(64));
    for _ in 0..20 {
        drop(stream.copy_from_host_async(&host, &there));
    }
    stream.add_callback(|_| {}).unwrap();
    stream.fence().unwrap().wait().unwrap();
    assert!(stream.copy_from_host_async(&host, &there.slice(..32).unwrap()).refusal().is_some());
    assert_eq!(counts(&stream.metrics()), [20, 20, 0]);
    let batch = [(host.clone(), there.clone())];
    drop(submit(&stream, &Operation::CopyBatch { pairs: &batch }, Timing::Off).unwrap());
    assert!(stream.outstanding() > 0);
    assert_eq!(counts(&stream.metrics()), [21, 21, 0], "a batch counts once");
    stream.synchronize().unwrap();
}

#[test]
fn metrics_sampling_all_times_every_operation() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    stream.enable_metrics(MetricsSampling::ALL);
    let (host, there, again) =
        (setup.pinned(&vec![1; 1 << 20]), setup.device(1 << 20), setup.device(1 << 20));
    for _ in 0..3 {
        drop(stream.copy_from_host_async(&host, &there));
    }
    drop(stream.memset_async(&again, Pattern::U8(1)));
    drop(submit(&stream, &Operation::CopyInPlace { src: &there, dst: &again }, Timing::Off).unwrap());
    stream.record_kernel_launch();
    stream.update_peak_memory(3000);
    stream.update_peak_memory(1000);
    stream.synchronize().unwrap();
    let metrics = stream.metrics();
    assert_eq!(metrics.operations_count, 6);
    assert_eq!(metrics.memory_transfers, 4, "a fill moves nothing");
    assert_eq!(metrics.kernel_launches, 2, "the in-place copy and the declared launch");
    assert_eq!(metrics.peak_memory, Some(3000));
    assert_eq!(metrics.timed_operations, 5, "what is launched through the handle cannot be timed");
    let (total, average) = (metrics.total_time.unwrap(), metrics.average_latency.unwrap());
    assert!(
        total.as_nanos() > 0 && average <= total && average * 5 <= total + std::time::Duration::from_nanos(5)
    );
    drop((host, there, again, stream));
    setup.finish();
}

#[test]
fn sampled_metrics_time_one_in_four_and_count_all() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    stream.enable_metrics(MetricsSampling::OneIn(NonZeroU32::new(4).unwrap()));
    let there = setup.device(64);
    let trace = transload_cuda_sys::trace::start();
    for n in 0..12 {
        drop(stream.memset_async(&there, Pattern::U8(n)));
    }
    stream.synchronize().unwrap();
    let elapsed =
        trace.calls_of_this_thread().iter().filter(|call| call.name == "cuEventElapsedTime").count();
    assert_eq!(elapsed, 3);
    let metrics = stream.metrics();
    assert_eq!((metrics.operations_count, metrics.timed_operations), (12, 3));
    stream.enable_metrics(false);
    drop(stream.memset_async(&there, Pattern::U8(1)));
    stream.synchronize().unwrap();
    let metrics = stream.metrics();
    assert_eq!((metrics.operations_count, metrics.timed_operations), (13, 3), "off again, only counted");
    stream.enable_metrics(true);
    assert_eq!(stream.metrics().sampling, MetricsSampling::USUAL);
}

#[test]
fn requested_duration_goes_to_the_caller_and_metrics() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&vec![1; 1 << 20]), setup.device(1 << 20));
    let copy = Operation::Copy { src: &host, dst: &there };
    let asked = submit(&stream, &copy, Timing::Measured).unwrap();
    stream.synchronize().unwrap();
    assert!(asked.timeline().take_duration(asked.point()).unwrap().is_some());
    assert_eq!(stream.metrics().timed_operations, 0, "they were off");
    stream.enable_metrics(MetricsSampling::ALL);
    let unasked = submit(&stream, &copy, Timing::Off).unwrap();
    let both = submit(&stream, &copy, Timing::Measured).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(unasked.timeline().take_duration(unasked.point()).unwrap(), None);
    assert!(both.timeline().take_duration(both.point()).unwrap().is_some());
    assert_eq!(stream.metrics().timed_operations, 2);
}
