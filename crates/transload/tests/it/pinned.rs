//! Pinned memory: what the limits cover, what gives way, and what goes on without.

use transload::{
    Array, DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, Result, Runtime, RuntimeBuilder,
    TransferMethod,
    backend::Backend,
    cuda::{CudaBackend, CudaBackendConfig, CudaGpu},
    io::{ByteSink, ByteSource, async_trait},
};
use transload_cuda_sim::harness::{self, TestDevice};

const MIB: usize = 1 << 20;

fn runtime(test: &TestDevice, builder: RuntimeBuilder) -> (Runtime, CudaGpu) {
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let rt = builder.cuda(config).discover().unwrap();
    let gpu = rt.cuda(test.ordinal()).unwrap();
    (rt, gpu)
}

fn limited(test: &TestDevice, bytes: usize) -> (Runtime, CudaGpu) {
    runtime(test, crate::uncalibrated::builder().pinned_limit(bytes as u64))
}

/// 16 MiB of host memory, and as much of the device's.
fn pair(rt: &Runtime, gpu: &CudaGpu) -> (Array<u32>, Array<u32>) {
    (rt.host((0..4 * MIB as u32).collect()).unwrap(), gpu.alloc(4 * MIB).unwrap())
}

#[test]
fn copies_need_no_pinned_memory_while_the_limit_is_reached() {
    let test = harness::device();
    let (rt, gpu) = limited(&test, 8 * MIB);
    let (weights, there) = pair(&rt, &gpu);
    let pinned = gpu.pinned::<u8>(8 * MIB).unwrap();
    for _ in 0..3 {
        assert_eq!(rt.copy(&weights, &there).wait().unwrap().method, TransferMethod::DirectCopy);
        assert_eq!(*rt.download(&there).wait().unwrap(), *weights.read().unwrap());
        let awaited = pollster::block_on(async { rt.copy(&weights, &there).await }).unwrap();
        assert_eq!(awaited.method, TransferMethod::DirectCopy);
    }

    // No other method is allowed: the error names the limit and who holds it.
    let staged = || rt.copy(&weights, &there).method(TransferMethod::HostStaged).wait();
    for _ in 0..3 {
        let error = staged().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.memory_shortage().unwrap().total, Some(8 * MIB as u64));
        let text = error.to_string();
        assert!(text.contains("limit of 8388608 bytes") && text.contains("8388608 allocated"), "{text}");
    }
    // At once, however often it was in vain before.
    drop(pinned);
    staged().unwrap();
    assert_eq!(*rt.download(&there).wait().unwrap(), *weights.read().unwrap());
    drop((weights, there));
    rt.drain().unwrap();
    drop((rt, gpu));
    test.assert_no_live_objects();
}

#[test]
fn free_staging_buffers_give_way_to_pinned_arrays() {
    let test = harness::device();
    let (rt, gpu) = limited(&test, 16 * MIB);
    let (weights, there) = pair(&rt, &gpu);
    for _ in 0..8 {
        for _ in 0..4 {
            rt.copy(&weights, &there).method(TransferMethod::HostStaged).wait().unwrap();
        }
        assert!(rt.resources().staging_bytes > 0);
        let pinned = gpu.pinned::<u8>(16 * MIB).unwrap();
        assert_eq!((rt.resources().staging_bytes, rt.resources().pinned_bytes), (0, 16 * MIB as u64));
        drop(pinned);
        rt.copy(&weights, &there).method(TransferMethod::HostStaged).wait().unwrap();
        let registered = gpu.backend().register(weights.raw()).unwrap();
        assert_eq!(rt.resources().staging_bytes, 0);
        drop(registered);
    }
    drop((weights, there));
    rt.drain().unwrap();
    assert_eq!((rt.resources().staging_bytes, rt.resources().pinned_bytes), (0, 0));
    drop((rt, gpu));
    test.assert_no_live_objects();
}

#[test]
fn first_copy_after_prepare_pins_nothing() {
    let test = harness::device();
    let (rt, gpu) = runtime(&test, crate::uncalibrated::builder());
    let weights = rt.host(vec![3_u8; 24 * MIB]).unwrap();
    let there = gpu.alloc::<u8>(24 * MIB).unwrap();
    let place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    rt.prepare(place, there.raw().place()).unwrap();
    let prepared = rt.resources();
    assert!(prepared.staging_bytes > 0);
    let report = rt.copy(&weights, &there).wait().unwrap();
    assert_eq!(report.method, TransferMethod::HostStaged);
    let after = rt.resources();
    assert_eq!((after.pinned_bytes, after.staging_bytes), (prepared.pinned_bytes, prepared.staging_bytes));
}

#[test]
fn limit_of_a_given_backend_is_refused() {
    let test = harness::device();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let given = || CudaBackend::open(&config).unwrap();
    let error = crate::uncalibrated::builder().backend(given()).pinned_limit(1 << 30).discover().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("pinned_limit"), "{error}");
    // The host's pins nothing.
    let host = transload::cpu::CpuBackend::new().unwrap();
    crate::uncalibrated::builder().backend(host).without("cuda").pinned_limit(1 << 30).discover().unwrap();
    crate::uncalibrated::builder().backend(given()).discover().unwrap();
}

#[test]
fn resources_say_what_pinned_memory_is_for() {
    let test = harness::device();
    let (rt, gpu) = runtime(&test, crate::uncalibrated::builder());
    let mib = |held: u64| held as usize / MIB;
    let pinned = gpu.pinned::<u8>(16 * MIB).unwrap();
    let weights = rt.host(vec![3_u8; 4 * MIB]).unwrap();
    let registered = gpu.backend().register(weights.raw()).unwrap();
    let staging = rt.manager().allocate_staging(gpu.id(), MemoryKind::Pinned, 4 * MIB).unwrap();
    let held = rt.resources();
    assert_eq!((mib(held.pinned_bytes), mib(held.registered_bytes), held.cached_pinned_bytes), (24, 4, 0));
    assert_eq!((mib(held.staging_bytes), held.ring_bytes), (4, 0));

    drop((pinned, staging));
    let held = rt.resources();
    assert_eq!((mib(held.pinned_bytes), mib(held.cached_pinned_bytes), held.staging_bytes), (24, 20, 0));
    rt.prepare(Place::new(DeviceId::Cpu, MemoryKind::Pageable), Place::new(gpu.id(), MemoryKind::Device))
        .unwrap();
    let held = rt.resources();
    assert!(held.ring_bytes > 0 && held.ring_bytes == held.staging_bytes, "{held}");

    drop((weights, registered));
    rt.drain().unwrap();
    assert!(rt.resources().is_empty(), "{}", rt.resources());
}

/// Gives zeros and takes everything, and keeps the largest number of bytes that were staging buffers meanwhile.
struct Watch(Runtime, u64);

impl Watch {
    fn look(&mut self, buffer: &RawBuffer) -> Result<usize> {
        self.1 = self.1.max(self.0.resources().staging_bytes);
        Ok(buffer.len())
    }
}

#[async_trait]
impl ByteSource for Watch {
    async fn read(&mut self, into: &RawBuffer) -> Result<usize> {
        self.look(into)
    }
}

#[async_trait]
impl ByteSink for Watch {
    async fn write(&mut self, from: &RawBuffer) -> Result<usize> {
        self.look(from)
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn buffers_of_streams_count_and_obey_the_limit() {
    let test = harness::device();
    for limit in [None, Some(12 * MIB as u64), Some(4 * MIB as u64)] {
        let builder =
            limit.map_or_else(Runtime::builder, |limit| crate::uncalibrated::builder().staging_limit(limit));
        let (rt, gpu) = runtime(&test, builder);
        let there = gpu.alloc::<u8>(40 * MIB).unwrap();
        pollster::block_on(async {
            let mut watch = Watch(rt.clone(), 0);
            assert_eq!(rt.read_from(&mut watch, &there).await.unwrap().bytes, 40 * MIB as u64);
            rt.write_to(&there, &mut watch).await.unwrap();
            // Without a limit three buffers of 4 MiB; with one as many as leave one for the ring.
            let expected = limit.map_or(12, |limit| limit / MIB as u64 - 4).max(4) * MIB as u64;
            let most = limit.unwrap_or(12 * MIB as u64);
            assert!((expected..=most).contains(&watch.1), "{} of {limit:?}", watch.1);
        });
        drop(there);
        rt.drain().unwrap();
        assert_eq!((rt.resources().staging_bytes, rt.resources().pinned_bytes), (0, 0));
    }
}
