//! The libraries install nothing that a process has only once: neither a subscriber of events nor a panic hook. A test binary of its
//! own, as these are process-wide.
#![cfg(all(feature = "cuda", feature = "profiler", any(target_os = "linux", windows)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "it/uncalibrated.rs"]
mod uncalibrated;

use std::{
    io, panic,
    sync::atomic::{AtomicU32, Ordering},
};

use transload::{
    DeviceId, MemoryKind,
    profiler::{ProfilerOptions, TraceFormat, TraceOptions},
};
use transload_cuda_sim::{SimDevice, install};

static PANICS: AtomicU32 = AtomicU32::new(0);

#[test]
fn neither_subscriber_nor_panic_hook_is_installed() {
    panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        println!("{panic}");
    }));
    install().unwrap();
    let sim = SimDevice::builder().build();
    let config = transload::cuda::CudaBackendConfig::default().with_devices([sim.ordinal()]);
    let runtime = crate::uncalibrated::builder().cuda(config).discover().unwrap();
    let profiler = runtime.profile(ProfilerOptions::new()).unwrap();
    profiler.start_trace(io::sink(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    // A callback of the user whose panic the library catches calls the user's hook.
    profiler.add_gauge("panics", transload::profiler::Unit::Count, || panic::panic_any(1));

    let manager = runtime.manager();
    let device = DeviceId::Cuda(sim.ordinal());
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        let there = manager.allocate_for(device, kind, 1 << 20).unwrap();
        for (owner, host) in [(DeviceId::Cpu, MemoryKind::Pageable), (device, MemoryKind::Pinned)] {
            let [src, dst] = [(); 2].map(|()| manager.allocate_for(owner, host, 1 << 20).unwrap());
            src.write().unwrap().fill(7);
            manager.copy(&src, &there).wait().unwrap();
            manager.copy_many(vec![(there.clone(), dst.clone())]).wait().unwrap();
            assert!(dst.read().unwrap().iter().all(|byte| *byte == 7));
        }
    }
    drop(profiler.get_comprehensive_report());
    profiler.finish_trace().unwrap();
    drop((profiler, runtime));

    assert!(!tracing::dispatcher::has_been_set(), "a subscriber was installed");
    let before = PANICS.load(Ordering::Relaxed);
    assert!(before >= 1, "the gauge's panic");
    panic::catch_unwind(|| panic::panic_any(1)).unwrap_err();
    assert_eq!(PANICS.load(Ordering::Relaxed), before + 1, "the panic hook was replaced");
}
