//! Discovery with and without CUDA. A process loads one driver for good, so a test that needs another one runs in a
//! child.

use std::sync::{Arc, Mutex, mpsc};

use transload::{
    DeviceId, Error, ErrorKind, MemoryKind, Result, Runtime, Sampling,
    backend::{
        Backend, DeviceFamily, async_trait,
        executor::{BlockingKey, Executor},
    },
    cpu::CpuBackend,
};

/// Set in the child.
const CHILD: &str = "TRANSLOAD_TEST_CHILD";

/// Runs the test in a child process whose driver path does not exist.
fn without_a_driver(test: &str, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let output = crate::programs::this_program()
        .args(["--exact", test, "--nocapture"])
        .env("TRANSLOAD_CUDA_DRIVER", "/nonexistent/libcuda.so.1")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the child ran no test: {text}");
}

fn round_trip(runtime: &Runtime, device: DeviceId, kind: MemoryKind) {
    let host = |byte: u8| {
        let buffer = runtime.allocate(DeviceId::Cpu, MemoryKind::Pageable, 100_001).unwrap();
        buffer.write().unwrap().fill(byte);
        buffer
    };
    let (src, back) = (host(7), host(0));
    let there = runtime.allocate(device, kind, src.len()).unwrap();
    runtime.manager().copy(&src, &there).wait().unwrap();
    runtime.manager().copy(&there, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
}

fn assert_drained(runtime: &Runtime) {
    runtime.drain().unwrap();
    for (backend, ledger) in runtime.manager().resource_counts() {
        assert!(ledger.is_empty(), "{backend}: {ledger}");
    }
}

#[test]
fn without_cuda_the_host_is_found_and_the_absence_is_explained() {
    without_a_driver("discover::without_cuda_the_host_is_found_and_the_absence_is_explained", host_only);
}

fn host_only() {
    let runtime = crate::uncalibrated::builder().discover().unwrap();
    let devices: Vec<DeviceId> = runtime.devices().iter().map(|info| info.id).collect();
    assert_eq!(devices, [DeviceId::Cpu]);

    let [(family, reason)] = runtime.absent() else { panic!("{:?}", runtime.absent()) };
    assert_eq!(*family, "cuda");
    let error = runtime.explain(DeviceId::Cuda(0));
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<Error>()).unwrap();
    assert_eq!((cause.kind(), cause.to_string()), (reason.kind(), reason.to_string()));
    let text = error.to_string();
    assert!(text.starts_with("there is no device cuda:0; there are cpu; cuda is absent: "), "{text}");
    if cfg!(all(feature = "cuda", any(target_os = "linux", windows))) {
        assert_eq!(cause.kind(), ErrorKind::NoDriver);
        assert!(text.contains("/nonexistent/libcuda.so.1"), "{text}");
    } else {
        assert_eq!(cause.kind(), ErrorKind::Unsupported);
    }

    let refused = runtime.allocate(DeviceId::Cuda(0), MemoryKind::Device, 1).unwrap_err();
    assert_eq!(refused.to_string(), error.to_string());
    let place = |device| transload::Place::new(device, MemoryKind::Device);
    let (host, there) =
        (transload::Place::new(DeviceId::Cpu, MemoryKind::Pageable), place(DeviceId::Cuda(0)));
    let array = runtime.zeros::<u8>(1).unwrap();
    for refused in [
        runtime.plan(host, there, 1).map(drop),
        runtime.prepare(there, host),
        runtime.alloc::<u8>(DeviceId::Cuda(0), MemoryKind::Device, 1).map(drop),
        runtime.upload(DeviceId::Cuda(0), &[1_u8]).map(drop),
        runtime.zeros_on::<u8>(DeviceId::Cuda(0), 1).map(drop),
        runtime.share(&array, DeviceId::Cuda(0)).map(drop),
        runtime.device(DeviceId::Cuda(0)).map(drop),
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        runtime.cuda(0).map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.to_string()), (error.kind(), error.to_string()));
    }
    drop(array);
    round_trip(&runtime, DeviceId::Cpu, MemoryKind::Pageable);
    assert_drained(&runtime);
}

#[test]
fn a_family_without_a_backend_is_explained_with_what_there_is() {
    without_a_driver("discover::a_family_without_a_backend_is_explained_with_what_there_is", other_families);
}

fn other_families() {
    let runtime = crate::uncalibrated::builder().discover().unwrap();
    for device in [DeviceId::Wgpu(0), DeviceId::Metal(1), DeviceId::Other("npu", 0)] {
        let error = runtime.explain(device);
        assert_eq!(error.kind(), ErrorKind::UnknownDevice);
        assert!(error.to_string().contains(device.family()), "{error}");
        assert!(error.to_string().contains("there are cpu; "), "{error}");
        let adds = if device == DeviceId::Other("npu", 0) {
            "RuntimeBuilder::family"
        } else {
            "RuntimeBuilder::wgpu"
        };
        assert!(error.to_string().contains(adds), "{error}");
    }
    let there = runtime.explain(DeviceId::Cpu);
    assert_eq!((there.kind(), there.to_string().as_str()), (ErrorKind::InvalidArgument, "cpu is there"));
}

#[test]
fn manager_with_own_sampling_gets_backends() {
    without_a_driver("discover::manager_with_own_sampling_gets_backends", own_manager);
}

fn own_manager() {
    let runtime = crate::uncalibrated::builder().sampling(Sampling::Every(1)).discover().unwrap();
    assert_eq!(runtime.manager().sampling(), Sampling::Every(1));
    assert!(runtime.device(DeviceId::Cpu).is_ok());
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn present_family_is_not_absent_and_host_is_first() {
    use transload::cuda::{CudaBackend, CudaBackendConfig};

    let test = transload_cuda_sim::harness::device();
    let id = DeviceId::Cuda(test.ordinal());
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    for with_host in [false, true] {
        let mut builder = crate::uncalibrated::builder().backend(CudaBackend::open(&config).unwrap());
        if with_host {
            builder = builder.backend(CpuBackend::new().unwrap());
        }
        let runtime = builder.discover().unwrap();
        assert!(runtime.absent().is_empty(), "{:?}", runtime.absent());
        let devices: Vec<DeviceId> = runtime.devices().iter().map(|info| info.id).collect();
        assert_eq!(devices, [DeviceId::Cpu, id]);
        round_trip(&runtime, id, MemoryKind::Device);
        assert_drained(&runtime);
    }
    test.assert_no_live_objects();
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn given_cuda_backend_has_typed_devices() {
    use transload::cuda::{CudaBackend, CudaBackendConfig};

    let test = transload_cuda_sim::harness::device();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]).with_pinned_limit(1 << 20);
    let given = CudaBackend::open(&config).unwrap();
    let rt = crate::uncalibrated::builder().backend(given.clone()).discover().unwrap();
    let gpu = rt.cuda(test.ordinal()).unwrap();
    assert!(std::ptr::eq(&**gpu.backend(), &*given));
    let pinned = gpu.pinned::<u8>(4096).unwrap();
    assert_eq!((rt.resources().pinned_bytes, rt.resources().pinned_limit), (4096, Some(1 << 20)));
    drop(pinned);
    assert_drained(&rt);
    drop((rt, gpu, given));
    test.assert_no_live_objects();
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn a_device_is_found_used_and_leaves_nothing_behind() {
    let test = transload_cuda_sim::harness::device();
    let id = DeviceId::Cuda(test.ordinal());
    let runtime = crate::uncalibrated::builder().discover().unwrap();
    assert!(runtime.absent().is_empty());
    assert_eq!(runtime.device(id).unwrap().simulated, test.is_simulated());
    round_trip(&runtime, id, MemoryKind::Device);
    let array = runtime.array::<u32>(runtime.allocate(id, MemoryKind::Device, 4004).unwrap()).unwrap();
    transload_core::conformance::typed_buffer(&array, 1, 2).unwrap();
    drop(array);

    // A buffer dropped in flight is pending free, then drained.
    let src = runtime.allocate(DeviceId::Cpu, MemoryKind::Pinned, 1 << 20).unwrap();
    let dst = runtime.allocate(id, MemoryKind::Device, 1 << 20).unwrap();
    drop(runtime.manager().copy(&src, &dst).submit());
    drop((src, dst));
    assert_drained(&runtime);

    let missing = runtime.explain(DeviceId::Cuda(4000));
    assert_eq!(missing.kind(), ErrorKind::UnknownDevice);
    assert!(missing.to_string().contains(&id.to_string()), "{missing}");
    drop(runtime);
    test.assert_no_live_objects();
}

/// A family whose driver takes until it is told that it may go on.
struct Slow {
    name: &'static str,
    go: Mutex<Option<mpsc::Receiver<()>>>,
    answer: fn() -> Result<Arc<dyn Backend>>,
}

#[async_trait]
impl DeviceFamily for Slow {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn discover(&self, executor: &Executor) -> Result<Arc<dyn Backend>> {
        let (go, answer) = (self.go.lock().unwrap().take().unwrap(), self.answer);
        let open = move || {
            go.recv().unwrap();
            answer()
        };
        executor.spawn_blocking(&BlockingKey::new(1), open).await?
    }
}

fn slow(name: &'static str, answer: fn() -> Result<Arc<dyn Backend>>) -> (Arc<Slow>, mpsc::Sender<()>) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(Slow { name, go: Mutex::new(Some(receiver)), answer }), sender)
}

#[test]
fn another_family_is_looked_for_without_blocking_the_task() {
    let (absent, first) = slow("npu", || Err(Error::new(ErrorKind::NoDriver, "there is no /dev/npu0")));
    let (host, second) = slow("dpu", || Ok(CpuBackend::new()?));
    let builder = crate::uncalibrated::builder().without("cuda").family(absent).family(host);
    let runtime = crate::tasks::one_thread().block_on(async {
        let looking = tokio::spawn(builder.discover_async());
        // Of the same thread as the task that looks.
        tokio::task::yield_now().await;
        assert!(!looking.is_finished());
        first.send(()).unwrap();
        second.send(()).unwrap();
        looking.await.unwrap().unwrap()
    });
    let absent: Vec<_> = runtime.absent().iter().map(|(name, reason)| (*name, reason.kind())).collect();
    // The host is there already: a second backend with it is refused.
    let expected = [("cuda", ErrorKind::Unsupported), ("npu", ErrorKind::NoDriver)];
    assert_eq!((&absent[..2], absent[2]), (&expected[..], ("dpu", ErrorKind::InvalidArgument)));
    let error = runtime.explain(DeviceId::Other("npu", 0));
    assert!(error.to_string().contains("there is no /dev/npu0"), "{error}");
}

#[test]
fn family_of_a_given_backend_or_left_out_is_not_looked_for() {
    let (given, _) = slow("cpu", || Err(Error::new(ErrorKind::NoDriver, "looked for")));
    let (left_out, _) = slow("npu", || Err(Error::new(ErrorKind::NoDriver, "looked for")));
    let builder =
        crate::uncalibrated::builder().without("cuda").without("npu").family(given).family(left_out);
    // Looking would panic: the sender is dropped.
    let absent: Vec<_> = builder.discover().unwrap().absent().iter().map(|(name, _)| *name).collect();
    assert_eq!(absent, ["cuda", "npu"]);
}
