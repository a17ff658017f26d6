//! Memory that CUDA and Vulkan share: on the software driver and llvmpipe, whose memory files the software driver maps; with
//! `TRANSLOAD_TEST_DRIVER=real` on a GPU that both drivers see.

use std::sync::Arc;

use transload_backend_wgpu::{CudaInterop, wgpu};
use transload_core::{Access, Backend as _, ErrorKind, MemoryKind, Operation, RawBuffer, Timing, submit};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_cuda_sys::trace;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use crate::{
    MIB, Setup,
    adapters::CHILD,
    exported::open,
    framework::frameworks,
    setup,
    shaders::{doubling, pipeline},
};

/// One GPU, or what stands for it.
struct Shared {
    setup: Setup,
    test: TestDevice,
    memory: Arc<CudaMemoryManager>,
    stream: CudaStream,
    interop: CudaInterop,
    pipeline: wgpu::ComputePipeline,
}

fn shared() -> Option<Shared> {
    shared_on(setup()?)
}

fn shared_on(mut setup: Setup) -> Option<Shared> {
    let devices = setup.backend.devices();
    let uuid = devices.last().and_then(|info| info.uuid);
    // SAFETY: mappings stay.
    let test = harness::device_like(|builder| unsafe { builder.uuid(uuid).external_memory(open) });
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let uuid = cuda.driver().uuid().ok();
    let Some(same) = devices.iter().find(|info| info.uuid == uuid) else {
        println!("skipped: no Vulkan device is {}", cuda.id());
        return None;
    };
    setup.device = same.id;
    let memory = Arc::new(CudaMemoryManager::new(&cuda).unwrap());
    let interop = match CudaInterop::new(&setup.backend, setup.device, &memory) {
        Ok(interop) => interop,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let (stream, pipeline) =
        (CudaStream::new(&cuda).unwrap(), pipeline(setup.backend.device(setup.device).unwrap()));
    Some(Shared { setup, test, memory, stream, interop, pipeline })
}

impl Shared {
    fn pinned(&self, bytes: usize) -> RawBuffer {
        self.memory.allocate(MemoryKind::Pinned, bytes).unwrap()
    }

    fn copy(&self, src: &RawBuffer, dst: &RawBuffer) {
        drop(submit(&self.stream, &Operation::Copy { src, dst }, Timing::Off).unwrap());
    }

    fn double(&self, handle: &wgpu::Buffer) -> wgpu::CommandBuffer {
        doubling(self.setup.backend.device(self.setup.device).unwrap(), &self.pipeline, handle)
    }

    /// Waits for everything, and checks that neither driver has anything left.
    fn finish(self) {
        let Self { setup, test, memory, stream, interop, pipeline } = self;
        drop((stream, interop, pipeline));
        setup.backend.device(setup.device).unwrap().poll(wgpu::PollType::wait_indefinitely()).unwrap();
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        setup.assert_empty();
        drop(memory);
        if let Some(sim) = test.sim() {
            let live = sim.live_objects();
            assert_eq!((live.external, live.device_allocations), (0, 0), "{live}");
        }
    }
}

#[test]
fn shaders_and_streams_use_one_memory_in_order() {
    shared().into_iter().for_each(use_in_order);
}

#[test]
fn device_of_a_framework_shares_memory_with_cuda() {
    let mut frameworks = frameworks();
    if frameworks.is_empty() {
        return;
    }
    shared_on(frameworks.remove(0).adopted()).into_iter().for_each(use_in_order);
}

#[test]
fn foreign_device_shares_no_memory_with_cuda() {
    let Some(framework) = frameworks().pop() else { return };
    let setup = framework.adopted();
    let cuda = CudaDevice::new(harness::device().ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&cuda).unwrap());
    let refused = CudaInterop::new(&setup.backend, setup.device, &memory).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("create_shared_device"), "{refused}");
}

fn use_in_order(shared: Shared) {
    let bytes = 4 * MIB;
    let (src, back) = (shared.pinned(bytes), shared.pinned(bytes));
    src.write().unwrap().chunks_mut(4).zip(1_u32..).for_each(|(to, n)| to.copy_from_slice(&n.to_ne_bytes()));
    let both = shared.interop.allocate(bytes).unwrap();
    assert_eq!(both.raw().place().device, shared.memory.device().id());
    let handle = both.wgpu().unwrap();
    let long = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| shared.memory.allocate(kind, 32 * MIB));
    let [long_src, long_dst] = long.map(Result::unwrap);
    for _ in 0..3 {
        // So that CUDA's copy has not begun when the shader is submitted.
        (0..4).for_each(|_| shared.copy(&long_src, &long_dst));
        // Nobody waits in between.
        let trace = trace::start();
        shared.copy(&src, both.raw());
        let commands = [(); 2].map(|()| shared.double(&handle));
        let doubled = shared.interop.submit(commands, &[(&both, Access::Write)], &[]).unwrap();
        shared.copy(both.raw(), &back);
        let calls = trace.calls_of_this_thread();
        let copies = calls.iter().filter(|call| call.name.starts_with("cuMemcpy"));
        assert_eq!(copies.count(), 2, "the shader's memory is CUDA's: {calls:?}");
        let has_bridge = calls.iter().any(|call| call.name == "cuStreamWaitEvent");
        assert!(
            !(has_bridge && shared.interop.waits_on_device()),
            "another stream waits in between: {calls:?}"
        );
        for (found, n) in back.read().unwrap().chunks(4).zip(1_u32..) {
            assert_eq!(found, (n * 4).to_ne_bytes());
        }
        doubled.wait().unwrap();
        drop(trace);
    }
    // Commands read what other commands of Vulkan wrote, and then CUDA.
    for _ in 0..3 {
        shared.interop.submit([shared.double(&handle)], &[(&both, Access::Write)], &[]).map(drop).unwrap();
    }
    shared.copy(both.raw(), &back);
    assert_eq!(back.read().unwrap()[..4], 32_u32.to_ne_bytes());
    drop((src, back, both, handle, long_src, long_dst));
    shared.finish();
}

#[test]
fn commands_come_after_and_before_several_streams() {
    let Some(shared) = shared() else { return };
    let (src, back) = (shared.pinned(2 * MIB), shared.pinned(2 * MIB));
    src.write().unwrap().fill(1);
    let both = shared.interop.allocate(2 * MIB).unwrap();
    let handle = both.wgpu().unwrap();
    let long = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| shared.memory.allocate(kind, 32 * MIB));
    let [long_src, long_dst] = long.map(Result::unwrap);
    let other = CudaStream::new(shared.memory.device()).unwrap();
    let copy = |stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer| {
        drop(submit(stream, &Operation::Copy { src, dst }, Timing::Off).unwrap());
    };
    for _ in 0..3 {
        // Each stream writes a half, long after the call. Then each reads the half that the other wrote.
        let [lower, upper] = [0..MIB, MIB..2 * MIB];
        for (stream, half) in [(&shared.stream, &lower), (&other, &upper)] {
            (0..4).for_each(|_| copy(stream, &long_src, &long_dst));
            copy(stream, &src.slice(half.clone()).unwrap(), &both.raw().slice(half.clone()).unwrap());
        }
        let commands = [(); 2].map(|()| shared.double(&handle));
        drop(shared.interop.submit(commands, &[(&both, Access::Write)], &[]).unwrap());
        for (stream, half) in [(&shared.stream, &upper), (&other, &lower)] {
            copy(stream, &both.raw().slice(half.clone()).unwrap(), &back.slice(half.clone()).unwrap());
        }
        // One number per four bytes, 0x01010101, doubled twice.
        assert!(back.read().unwrap().iter().all(|byte| *byte == 4));
    }
    drop((src, back, both, handle, long_src, long_dst, other));
    shared.finish();
}

#[test]
fn memory_is_kept_while_either_uses_it() {
    let Some(shared) = shared() else { return };
    let src = shared.pinned(MIB);
    src.write().unwrap().fill(1);
    let both = shared.interop.allocate(MIB).unwrap();
    shared.copy(&src, both.raw());
    let commands = shared.double(&both.wgpu().unwrap());
    drop(shared.interop.submit([commands], &[(&both, Access::Write)], &[]).unwrap());
    let raw = both.raw().clone();
    drop(both);
    let back = shared.pinned(MIB);
    shared.copy(&raw, &back);
    drop(raw);
    assert!(back.read().unwrap().iter().all(|byte| *byte == 2));
    drop((src, back));
    shared.finish();
}

#[test]
fn bad_use_is_refused_and_loses_nothing() {
    let Some(shared) = shared() else { return };
    assert_eq!(shared.interop.allocate(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let huge = shared.interop.allocate(1 << 50).unwrap_err();
    assert_eq!(huge.kind(), ErrorKind::OutOfRange, "{huge}");
    let both = shared.interop.allocate(64).unwrap();
    let src = shared.pinned(64);
    src.write().unwrap().fill(1);
    shared.copy(&src, both.raw());
    // A copy out of bounds.
    let handle = both.wgpu().unwrap();
    let device = shared.setup.backend.device(shared.setup.device).unwrap();
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&handle, 0, &handle, 32, 4096);
    let refused = shared.interop.submit([encoder.finish()], &[(&both, Access::Write)], &[]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    shared.interop.submit([shared.double(&handle)], &[(&both, Access::Write)], &[]).map(drop).unwrap();
    shared.copy(both.raw(), &src);
    assert_eq!(*src.read().unwrap(), [2; 64]);
    drop((both, src, handle));
    shared.finish();
}

#[test]
fn different_gpus_are_refused() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let Some(setup) = setup() else { return };
    let cuda = CudaDevice::new(harness::device().ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&cuda).unwrap());
    let refused = CudaInterop::new(&setup.backend, setup.device, &memory).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("UUID"), "{refused}");
}

#[test]
fn driver_that_imports_nothing_is_unsupported() {
    if harness::is_real() {
        println!("skipped: needs the software driver");
        return;
    }
    let Some(setup) = setup() else { return };
    let uuid = setup.backend.devices().last().and_then(|info| info.uuid);
    let test = harness::device_like(|builder| builder.uuid(uuid));
    let memory = Arc::new(CudaMemoryManager::new(&CudaDevice::new(test.ordinal()).unwrap()).unwrap());
    let interop = CudaInterop::new(&setup.backend, setup.device, &memory).unwrap();
    let refused = interop.allocate(64).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    drop(interop);
    setup.assert_empty();
}

/// Each import gets a descriptor of its own. One that succeeds takes it, and one that fails leaves it to the caller.
#[test]
fn descriptors_are_closed_once_also_if_an_import_fails() {
    const THIS: &str = "cuda::descriptors_are_closed_once_also_if_an_import_fails";
    if std::env::var_os(CHILD).is_none() {
        // No other test opens any there.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", THIS, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    if harness::is_real() {
        return println!("skipped: needs the software driver");
    }
    let Some(Shared { setup, memory, interop, .. }) = shared() else { return };
    let uuid = memory.device().driver().uuid().ok();
    // SAFETY: nothing is imported.
    let refusing = harness::device_like(|builder| unsafe { builder.uuid(uuid).external_memory(|_, _| None) });
    let refusing = CudaMemoryManager::new(&CudaDevice::new(refusing.ordinal()).unwrap()).unwrap();
    let refusing = CudaInterop::new(&setup.backend, setup.device, &Arc::new(refusing)).unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The first uses open what stays.
    for round in 0..3 {
        let before = descriptors();
        for _ in 0..8 {
            drop(refusing.allocate(MIB).unwrap_err());
            let both = [interop.allocate(MIB).unwrap(), interop.allocate(MIB).unwrap()];
            drop(both);
            memory.drain().unwrap();
        }
        setup.backend.drain().unwrap();
        assert!(round == 0 || descriptors() == before, "{} descriptors became {}", before, descriptors());
    }
}
