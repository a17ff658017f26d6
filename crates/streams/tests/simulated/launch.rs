//! Launches on a driver that fails, rejects the module or checks for races, and kernels that fault.

use transload_core::{DeviceId, ErrorKind, Fence, MemoryKind, Pattern, RawBuffer, Result};
use transload_cuda_sim::Residency;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaKernel, CudaModule, CudaStream, Launch, LaunchConfig, LaunchExecutor};

use crate::{ILLEGAL_ADDRESS, UNKNOWN, alone_with_drop_errors, builder, with_each_call_failing};

const SAXPY: &str = include_str!("../../examples/kernels/saxpy.ptx");

fn kernel(device: &CudaDevice) -> Result<CudaKernel> {
    CudaModule::from_ptx(device, SAXPY)?.kernel("transload_saxpy")
}

/// y = x + y over all of both.
fn sum<'a>(kernel: &'a CudaKernel, x: &'a RawBuffer, y: &'a RawBuffer) -> Launch<'a> {
    let count = (y.len() / 4) as u64;
    let config = LaunchConfig::for_elements(count, 128);
    kernel.launch(config).arg(1.0_f32).reads(x).reads_writes(y).arg(count)
}

fn enqueue(launch: Launch<'_>, stream: &CudaStream) -> Result<Fence> {
    // SAFETY: `sum` passes the kernel's parameters and declares its memory.
    unsafe { launch.enqueue(stream) }
}

fn through(executor: &LaunchExecutor, launch: Launch<'_>, stream: &CudaStream) -> Result<Fence> {
    // SAFETY: as above.
    unsafe { executor.enqueue(launch, stream) }
}

fn ones(buffer: &RawBuffer) -> Result<()> {
    buffer.write()?.chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&1.0_f32.to_le_bytes()));
    Ok(())
}

#[test]
fn launches_on_many_streams_have_no_race_under_fifty_seeds() {
    for seed in 0..50 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let kernel = kernel(&device).unwrap();
        let executor = LaunchExecutor::new(&device).unwrap();
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
        let unified: Vec<_> = (0..3).map(|_| memory.allocate(MemoryKind::Unified, 40_000).unwrap()).collect();
        let local = memory.allocate(MemoryKind::Device, 40_000).unwrap();
        let host = memory.allocate(MemoryKind::Pinned, 40_000).unwrap();
        ones(&host).unwrap();
        unified.iter().for_each(|buffer| ones(buffer).unwrap());
        drop(streams[0].copy_from_host_async(&host, &local));
        through(&executor, sum(&kernel, &unified[0], &unified[1]), &streams[1]).unwrap();
        through(&executor, sum(&kernel, &unified[1], &local).result_on(DeviceId::Cpu), &streams[2]).unwrap();
        drop(streams[0].memset_async(&unified[1], Pattern::U8(0)));
        let last = sum(&kernel, &local, &unified[2]).result_on(DeviceId::Cpu);
        through(&executor, last, &streams[0]).unwrap();
        drop(streams[1].copy_to_host_async(&local, &host));
        let all = |buffer: &RawBuffer, value: f32| {
            buffer.read().unwrap().chunks_exact(4).all(|number| number == value.to_le_bytes())
        };
        assert!(all(&unified[2], 4.0) && all(&host, 3.0) && all(&unified[1], 0.0), "seed {seed}");
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
    }
}

#[test]
fn launch_that_ran_without_an_event_marks_what_it_writes() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (kernel, stream) = (kernel(&device).unwrap(), CudaStream::new(&device).unwrap());
    let [x, y] = [(); 2].map(|()| memory.allocate(MemoryKind::Mapped, 4000).unwrap());
    [&x, &y].into_iter().for_each(|buffer| ones(buffer).unwrap());
    sim.fail_call(Some("cuEventRecord"), 1, 304);
    let failed = enqueue(sum(&kernel, &x, &y), &stream).unwrap_err();
    assert!(failed.is_partial(), "{failed}");
    assert_eq!(y.read().map(drop).unwrap_err().kind(), ErrorKind::SourceFailed);
    drop(x.read().unwrap());
    // The next launch does not know what it adds to.
    assert_eq!(enqueue(sum(&kernel, &y, &x), &stream).unwrap_err().kind(), ErrorKind::SourceFailed);
}

#[test]
fn a_prefetched_launch_finds_its_pages_on_the_device() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let kernel = kernel(&device).unwrap();
    let executor = LaunchExecutor::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (x, y) = (
        memory.allocate(MemoryKind::Unified, 4000).unwrap(),
        memory.allocate(MemoryKind::Unified, 4000).unwrap(),
    );
    ones(&x).unwrap();
    ones(&y).unwrap();
    let at = |buffer: &RawBuffer| sim.residency(buffer.device_address().unwrap()).unwrap();
    assert_eq!((at(&x), at(&y)), (Residency::Host, Residency::Host));
    let fence = through(&executor, sum(&kernel, &x, &y), &stream).unwrap();
    fence.wait().unwrap();
    let executed: Vec<_> = sim.executed().into_iter().map(|(_, name)| name).collect();
    let position = |wanted: &str| executed.iter().rposition(|name| *name == wanted).unwrap();
    assert!(position("cuMemPrefetchAsync_v2") < position("cuLaunchKernel"), "{executed:?}");
    assert_eq!((at(&x), at(&y)), (Residency::Device(sim.ordinal()), Residency::Device(sim.ordinal())));
}

#[test]
fn each_failing_call_of_a_launch_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> Result<()> {
        let kernel = kernel(device)?;
        let executor = LaunchExecutor::new(device)?;
        let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
        let (x, y) =
            (memory.allocate(MemoryKind::Unified, 4000)?, memory.allocate(MemoryKind::Unified, 4000)?);
        ones(&x)?;
        ones(&y)?;
        through(&executor, sum(&kernel, &x, &y), &one)?;
        enqueue(sum(&kernel, &y, &x), &two)?;
        through(&executor, sum(&kernel, &x, &y).result_on(DeviceId::Cpu), &two)?;
        let end = executor.prefetch_back(&x)?;
        let outcome = x.wait_idle().and(y.wait_idle());
        drop(end);
        outcome
    }
    with_each_call_failing(scenario);
}

#[test]
fn failing_kernel_is_its_streams_error_and_memory_is_freed() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let kernel = kernel(&device).unwrap();
    let (well, astray) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
    let (x, y) = (
        memory.allocate(MemoryKind::Device, 400).unwrap(),
        memory.allocate(MemoryKind::Device, 400).unwrap(),
    );
    let before = enqueue(sum(&kernel, &x, &y), &well).unwrap();
    before.wait().unwrap();
    let config = LaunchConfig::linear(1, 32);
    let launch = kernel.launch(config).arg(1.0_f32).reads(&x).address(0xBAD_0000).arg(100_u64);
    // SAFETY: deliberately unsound: the software driver detects it.
    let fence = unsafe { launch.enqueue(&astray) }.unwrap();
    let error = fence.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    assert!(error.to_string().contains(&ILLEGAL_ADDRESS.to_string()), "{error}");
    assert_eq!(astray.synchronize().unwrap_err().kind(), ErrorKind::DeviceLost);
    assert!(before.wait().is_ok(), "earlier completed work has no error");
    assert_eq!(enqueue(sum(&kernel, &x, &y), &astray).unwrap_err().kind(), ErrorKind::DeviceLost);
    drop((x, y));
    assert_eq!(
        memory.resource_counts().pending_free,
        0,
        "nothing runs on a lost device, so nothing is waited for"
    );
}

#[test]
fn only_a_rejected_module_is_unsupported() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    for code in [200, 209, 218, 221, 222, 223] {
        sim.fail_call(Some("cuModuleLoadDataEx"), 1, code);
        let error = kernel(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{code}");
        assert!(error.to_string().contains("rejects this module"), "{error}");
    }
    sim.fail_call(Some("cuModuleLoadDataEx"), 1, UNKNOWN);
    assert_eq!(kernel(&device).unwrap_err().kind(), ErrorKind::Device);
    sim.fail_call(Some("cuModuleLoadDataEx"), 1, 2);
    assert_eq!(kernel(&device).unwrap_err().kind(), ErrorKind::OutOfMemory);
    for call in ["cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncGetParamInfo"] {
        sim.fail_call(Some(call), 1, UNKNOWN);
        assert_eq!(kernel(&device).unwrap_err().kind(), ErrorKind::Device, "{call}");
    }
    drop(kernel(&device).unwrap());
    drop(device);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn only_an_idle_module_is_unloaded_on_drop() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (x, y) = (
        memory.allocate(MemoryKind::Device, 400_000).unwrap(),
        memory.allocate(MemoryKind::Device, 400_000).unwrap(),
    );
    let idle = kernel(&device).unwrap();
    enqueue(sum(&idle, &x, &y), &stream).unwrap().wait().unwrap();
    drop(idle);
    assert_eq!(sim.live_objects().modules, 0, "nothing of it runs");
    let busy = kernel(&device).unwrap();
    // Queues enough before the launch that one query does not find it complete.
    for round in 0..100 {
        drop(stream.memset_async(&x, Pattern::U8(round)));
    }
    let fence = enqueue(sum(&busy, &x, &y), &stream).unwrap();
    drop(busy);
    assert_eq!(sim.live_objects().modules, 1, "to unload it the driver would have to wait");
    fence.wait().unwrap();
    drop((fence, stream, x, y));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn launch_without_concurrent_access_does_not_prefetch() {
    let sim = builder().pre_pascal().record_accesses(true).checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (kernel, executor) = (kernel(&device).unwrap(), LaunchExecutor::new(&device).unwrap());
    let stream = CudaStream::new(&device).unwrap();
    let (x, y) = (
        memory.allocate(MemoryKind::Unified, 400).unwrap(),
        memory.allocate(MemoryKind::Unified, 400).unwrap(),
    );
    let host = memory.allocate(MemoryKind::Pinned, 400).unwrap();
    ones(&host).unwrap();
    drop(stream.copy_from_host_async(&host, &x));
    drop(stream.copy_from_host_async(&host, &y));
    let trace = transload_cuda_sys::trace::start();
    drop(through(&executor, sum(&kernel, &x, &y).result_on(DeviceId::Cpu), &stream).unwrap());
    assert!(trace.calls_of_this_thread().iter().all(|call| !call.name.starts_with("cuMemPrefetchAsync")));
    drop(stream.copy_to_host_async(&y, &host));
    assert!(host.read().unwrap().chunks_exact(4).all(|number| number == 2.0_f32.to_le_bytes()));
    drop((x, y, host, stream, executor, kernel));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}
