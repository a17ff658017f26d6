//! Page faults of a device, told and followed, by the software driver's CUPTI and by NVIDIA's (`TRANSLOAD_TEST_DRIVER=real`). A process of its own: CUPTI
//! must be loaded before the first context.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, OperationKind, OperationSampling, Pattern, RawBuffer, Result,
    Timing, submit,
};
use transload_cuda_sim::harness;
use transload_memory::ActivityRecording;
use transload_profiler::{Advice, AdviceKind, ProfilerOptions, StreamProfiler};
use transload_streams::{CudaModule, CudaStream, LaunchConfig};

const SAXPY: &str = include_str!("../../streams/examples/kernels/saxpy.ptx");
const BYTES: usize = 64 << 20;

/// Has a kernel use unified memory that lies on the host, after a prefetch or by page faults. Returns the advice on it, and how long its stream took, in nanoseconds
/// of the device's clock.
fn run(is_prefetched: bool) -> Result<(Option<Advice>, u64)> {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let (backend, id) = (CudaBackend::open(&config)?, DeviceId::Cuda(test.ordinal()));
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL));
    profiler.attach(&(backend.clone() as _))?;
    profiler.enable()?;
    profiler.record_engines()?;
    let device = backend.device(test.ordinal())?;
    let kernel = CudaModule::from_ptx(device, SAXPY)?.kernel("transload_saxpy")?;
    let (stream, other) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let unified = || -> Result<RawBuffer> {
        let buffer = backend.allocate(id, MemoryKind::Unified, BYTES)?;
        buffer.write()?.fill(0);
        Ok(buffer)
    };
    let prefetch = |stream: &CudaStream, buffer: &RawBuffer| {
        submit(stream, &Operation::Prefetch { buffer, to: id }, Timing::Off)?.wait()
    };
    let (weights, elsewhere) = (unified()?, unified()?);
    let sum = backend.allocate(id, MemoryKind::Device, BYTES)?;
    submit(&stream, &Operation::Fill { dst: &sum, pattern: Pattern::U8(0) }, Timing::Off)?.wait()?;
    profiler.name_buffer(&weights, "weights")?;
    if harness::is_real() {
        // It tells how long prefetches take. On the software driver, faults take as long.
        prefetch(&other, &elsewhere)?;
    }
    if is_prefetched {
        prefetch(&stream, &weights)?;
    }
    let count = BYTES as u64 / 4;
    let launch = kernel.launch(LaunchConfig::for_elements(count, 256)).arg(2.0_f32);
    // SAFETY: the kernel takes a float, two arrays of so many floats, and their number.
    unsafe { launch.reads(&weights).reads_writes(&sum).arg(count).enqueue(&stream) }?.wait()?;
    let report = profiler.get_comprehensive_report();
    let without = report.without_migrations.as_ref();
    assert!(without.is_none() || !test.is_simulated(), "{report}");
    without.iter().for_each(|cause| println!("skipped: {cause:?}"));
    let of_stream = profiler.get_stream_report(&stream).unwrap();
    let took = of_stream.kinds.iter().filter(|kind| kind.kind != OperationKind::Fill);
    let took = took.map(|kind| kind.running.total_ns).sum();
    let advice =
        report.advice.iter().find(|advice| matches!(advice.kind, AdviceKind::Prefetch { .. })).cloned();
    assert!(without.is_some() || advice.is_some() != is_prefetched, "{report}");
    drop((weights, elsewhere, sum, profiler));
    backend.drain()?;
    Ok((advice, took))
}

#[test]
fn kernel_that_waits_for_page_faults_is_told_and_prefetching_saves_it() {
    // Before the first context, for which the driver is needed.
    let _driver = harness::device();
    let early = ActivityRecording::start([]);
    if let Err(error) = &early {
        assert!(harness::is_real(), "the software driver has CUPTI: {error}");
        println!("skipped: {error}");
        return;
    }
    let mut kept = Vec::new();
    for round in 0..if harness::is_real() { 5 } else { 1 } {
        let (advice, faulting) = run(false).unwrap();
        let (_, prefetched) = run(true).unwrap();
        let Some(advice) = advice else { continue };
        assert_eq!((advice.buffer.as_deref(), advice.bytes), (Some("weights"), BYTES as u64), "{advice}");
        println!("{round}: {advice}");
        if let Some(promised) = advice.saving_ns.filter(|_| !advice.simulated) {
            let saved = faulting.saturating_sub(prefetched) as f64;
            let share = saved / promised as f64;
            println!(
                "{round}: by faults {faulting} ns, prefetched {prefetched} ns, saved {share:.2} of what was promised"
            );
            kept.push(share);
        }
    }
    kept.sort_by(f64::total_cmp);
    if let Some(median) = kept.get(kept.len() / 2) {
        assert!((0.75..=1.25).contains(median), "of what was promised, by round: {kept:?}");
    }
}
