//! Memory that CUDA and Vulkan share: on the software driver and llvmpipe, whose memory files the software driver maps; with
//! `TRANSLOAD_TEST_DRIVER=real` on a GPU that both drivers see.

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_backend_wgpu::{CudaInterop, wgpu};
use transload_core::{
    Access, Backend as _, DeviceId, ErrorKind, Fence, MemoryKind, Operation, Pattern, Place, RawBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_cuda_sys::trace;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;
use transload_transfer::CrossBackendTransferManager;

use crate::{
    MIB, Setup,
    adapters::CHILD,
    exported::open,
    framework::frameworks,
    setup,
    shaders::{doubling, pipeline},
};

/// One GPU, or what stands for it.
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) test: TestDevice,
    pub(crate) memory: Arc<CudaMemoryManager>,
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) stream: CudaStream,
    interop: CudaInterop,
    pipeline: wgpu::ComputePipeline,
}

pub(crate) fn shared() -> Option<Shared> {
    shared_on(setup()?)
}

pub(crate) fn shared_on(mut setup: Setup) -> Option<Shared> {
    let devices = setup.backend.devices();
    let uuid = devices.last().and_then(|info| info.uuid);
    // SAFETY: mappings stay.
    let test = harness::device_like(|builder| unsafe {
        builder.uuid(uuid).total_memory(2 << 30).external_memory(open)
    });
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let uuid = cuda.driver().uuid().ok();
    let Some(same) = devices.iter().find(|info| info.uuid == uuid) else {
        println!("skipped: no Vulkan device is {}", cuda.id());
        return None;
    };
    setup.device = same.id;
    let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([test.ordinal()])).unwrap();
    let memory = Arc::clone(backend.memory(test.ordinal()).unwrap());
    let manager = CrossBackendTransferManager::builder().registration(false).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(backend).unwrap();
    let weak = Arc::downgrade(&memory);
    // Refused where the interop is.
    let _connected = setup.backend.connect_cuda(&cuda, move || Ok(weak.upgrade().unwrap()));
    manager.register_backend(Arc::clone(&setup.backend) as _).unwrap();
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
    Some(Shared { setup, test, memory, manager, stream, interop, pipeline })
}

impl Shared {
    pub(crate) fn pinned(&self, bytes: usize) -> RawBuffer {
        self.memory.allocate(MemoryKind::Pinned, bytes).unwrap()
    }

    pub(crate) fn copy(&self, src: &RawBuffer, dst: &RawBuffer) {
        drop(submit(&self.stream, &Operation::Copy { src, dst }, Timing::Off).unwrap());
    }

    fn double(&self, handle: &wgpu::Buffer) -> wgpu::CommandBuffer {
        doubling(self.setup.backend.device(self.setup.device).unwrap(), &self.pipeline, handle)
    }

    /// Memory that both use, as each sees it.
    pub(crate) fn allocate(&self, bytes: usize) -> (RawBuffer, RawBuffer) {
        let theirs = self.interop.allocate(bytes).unwrap();
        let ours = self.share(&theirs, self.setup.device);
        (theirs, ours)
    }

    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> RawBuffer {
        let shared = self.manager.share(buffer, device).unwrap();
        assert!(!shared.copied && shared.arrival.is_none());
        assert_eq!(shared.buffer.place(), Place::new(device, MemoryKind::Device));
        shared.buffer
    }

    fn handle(&self, ours: &RawBuffer) -> wgpu::Buffer {
        self.setup.backend.buffer(ours).unwrap()
    }

    fn submit(&self, commands: impl IntoIterator<Item = wgpu::CommandBuffer>, used: &RawBuffer) -> Fence {
        self.setup.backend.submit(self.setup.device, commands, &[(used, Access::Write)]).unwrap()
    }

    /// Waits for everything, and checks that neither driver has anything left.
    pub(crate) fn finish(self) {
        let Self { setup, test, memory, manager, stream, interop, pipeline } = self;
        drop((stream, interop, pipeline));
        manager.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        setup.assert_empty();
        drop((memory, manager));
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
    assert!(!harness::is_real() || shared.interop.waits_on_device());
    let bytes = 4 * MIB;
    let (src, back) = (shared.pinned(bytes), shared.pinned(bytes));
    src.write().unwrap().chunks_mut(4).zip(1_u32..).for_each(|(to, n)| to.copy_from_slice(&n.to_ne_bytes()));
    let (theirs, ours) = shared.allocate(bytes);
    assert_eq!(theirs.place().device, shared.memory.device().id());
    let handle = shared.handle(&ours);
    let long = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| shared.memory.allocate(kind, 32 * MIB));
    let [long_src, long_dst] = long.map(Result::unwrap);
    for _ in 0..3 {
        // So that CUDA's copy has not begun when the shader is submitted.
        (0..4).for_each(|_| shared.copy(&long_src, &long_dst));
        // Nobody waits in between.
        let trace = trace::start();
        shared.copy(&src, &theirs);
        let commands = [(); 2].map(|()| shared.double(&handle));
        let doubled = shared.submit(commands, &ours);
        shared.copy(&theirs, &back);
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
        // CUDA's buffer names the memory as well.
        drop(shared.submit([shared.double(&handle)], &theirs));
    }
    shared.copy(&theirs, &back);
    assert_eq!(back.read().unwrap()[..4], 32_u32.to_ne_bytes());
    assert!(shared.manager.get_transfer_stats().is_empty());
    drop((src, back, theirs, ours, handle, long_src, long_dst));
    shared.finish();
}

#[test]
fn commands_come_after_and_before_several_streams() {
    let Some(shared) = shared() else { return };
    let (src, back) = (shared.pinned(2 * MIB), shared.pinned(2 * MIB));
    src.write().unwrap().fill(1);
    let (theirs, ours) = shared.allocate(2 * MIB);
    let handle = shared.handle(&ours);
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
            copy(stream, &src.slice(half.clone()).unwrap(), &theirs.slice(half.clone()).unwrap());
        }
        let commands = [(); 2].map(|()| shared.double(&handle));
        drop(shared.submit(commands, &ours));
        for (stream, half) in [(&shared.stream, &upper), (&other, &lower)] {
            copy(stream, &theirs.slice(half.clone()).unwrap(), &back.slice(half.clone()).unwrap());
        }
        // One number per four bytes, 0x01010101, doubled twice.
        assert!(back.read().unwrap().iter().all(|byte| *byte == 4));
    }
    drop((src, back, theirs, ours, handle, long_src, long_dst, other));
    shared.finish();
}

#[test]
fn memory_is_kept_while_either_uses_it() {
    let Some(shared) = shared() else { return };
    let (src, back) = (shared.pinned(MIB), shared.pinned(MIB));
    src.write().unwrap().fill(1);
    for cuda_first in [true, false] {
        let (theirs, ours) = shared.allocate(MIB);
        assert_eq!(shared.setup.backend.resource_counts().allocations, 0, "CUDA counts it");
        shared.copy(&src, &theirs);
        let commands = shared.double(&shared.handle(&ours));
        if cuda_first {
            drop(theirs);
            drop(shared.submit([commands], &ours));
            shared.copy(&shared.share(&ours, shared.memory.device().id()), &back);
        } else {
            drop(shared.submit([commands], &ours));
            drop(ours);
            shared.copy(&theirs, &back);
        }
        assert!(back.read().unwrap().iter().all(|byte| *byte == 2));
    }
    drop((src, back));
    shared.finish();
}

/// Nor is the memory: the host drops both while the shader may run.
#[test]
fn dropped_handles_are_not_kept_beyond_the_work() {
    let Some(shared) = shared() else { return };
    for _ in 0..20 {
        let (theirs, ours) = shared.allocate(MIB);
        let fence = shared.submit([shared.double(&shared.handle(&ours))], &ours);
        drop((ours, theirs));
        fence.wait().unwrap();
    }
    assert_eq!(shared.setup.backend.resource_counts().pending_free, 0);
    shared.finish();
}

#[test]
fn submission_uses_memory_of_two_interops_which_it_outlives() {
    let Some(shared) = shared() else { return };
    let (backend, device) = (&shared.setup.backend, shared.setup.device);
    let other = CudaInterop::new(backend, device, &shared.memory).unwrap();
    let theirs = [&shared.interop, &other].map(|interop| interop.allocate(MIB).unwrap());
    drop(other);
    let ours = theirs.each_ref().map(|buffer| shared.share(buffer, device));
    let handles = ours.each_ref().map(|buffer| shared.handle(buffer));
    let (src, back) = (shared.pinned(MIB), shared.pinned(MIB));
    src.write().unwrap().fill(1);
    for _ in 0..3 {
        theirs.iter().for_each(|to| shared.copy(&src, to));
        drop(shared.submit([shared.double(&handles[1])], &ours[1]));
        let commands = handles.each_ref().map(|handle| shared.double(handle));
        let uses = ours.each_ref().map(|buffer| (buffer, Access::Write));
        drop(backend.submit(device, commands, &uses).unwrap());
        for (from, byte) in theirs.iter().zip([2, 4]) {
            shared.copy(from, &back);
            assert!(back.read().unwrap().iter().all(|found| *found == byte));
        }
    }
    drop((theirs, ours, handles, src, back));
    shared.finish();
}

#[test]
fn share_returns_the_same_bytes_of_the_other_device() {
    let Some(shared) = shared() else { return };
    let (here, there) = (shared.setup.device, shared.memory.device().id());
    let (theirs, ours) = shared.allocate(1001);
    assert_eq!((ours.id(), ours.len(), ours.offset()), (theirs.id(), 1001, 0));
    for (part, device) in [(theirs.slice(3..500).unwrap(), here), (ours.slice(3..500).unwrap(), there)] {
        let other = shared.share(&part, device);
        assert_eq!((other.len(), other.offset(), other.allocation_len()), (497, 3, 1001));
        let back = shared.share(&other, part.place().device);
        assert!(other.overlaps(&part) && back.overlaps(&other));
        assert_eq!(shared.share(&part, part.place().device).offset(), 3);
    }
    // Other memory is copied, as before.
    let src = shared.pinned(64);
    src.write().unwrap().fill(7);
    for (from, to) in [(here, there), (there, here)] {
        let other = shared.manager.allocate(from, MemoryKind::Device, 64).unwrap();
        shared.manager.copy(&src, &other).wait().unwrap();
        let copy = shared.manager.share(&other, to).unwrap();
        assert!(copy.copied && copy.buffer.id() != other.id());
        let back = shared.pinned(64);
        shared.manager.copy(&copy.buffer, &back).wait().unwrap();
        assert_eq!(*back.read().unwrap(), [7; 64]);
    }
    drop((theirs, ours, src));
    shared.finish();
}

#[test]
fn what_uses_one_of_both_conflicts_with_the_other() {
    let Some(shared) = shared() else { return };
    let (src, (theirs, ours)) = (shared.pinned(64), shared.allocate(64));
    src.write().unwrap().fill(1);
    let queue = shared.setup.queue();
    let written = |to: &RawBuffer| {
        submit(&shared.stream, &Operation::Copy { src: &src, dst: to }, Timing::Off)
            .map_err(|error| error.kind())
    };
    let submitted = |used: &RawBuffer| {
        let none: [wgpu::CommandBuffer; 0] = [];
        let outcome = shared.setup.backend.submit(shared.setup.device, none, &[(used, Access::Write)]);
        outcome.map_err(|error| error.kind())
    };
    for (lent, used) in [(&ours, &theirs), (&theirs, &ours)] {
        let loan = lent.lend(Access::Read).unwrap();
        assert_eq!(submitted(used).unwrap_err(), ErrorKind::Busy);
        assert_eq!(written(&theirs).unwrap_err(), ErrorKind::Busy);
        let copied = submit(&*queue, &Operation::Copy { src: &src, dst: &ours }, Timing::Off);
        assert_eq!(copied.unwrap_err().kind(), ErrorKind::Busy);
        drop(loan);
        drop((submitted(used).unwrap(), written(&theirs).unwrap()));
    }
    drop((src, theirs, ours, queue));
    shared.finish();
}

#[test]
fn queues_of_the_device_copy_shared_memory_in_order_with_both() {
    let Some(shared) = shared() else { return };
    let bytes = 3 * MIB + 5;
    let (src, back) = (shared.pinned(bytes), shared.pinned(bytes));
    src.write().unwrap().copy_from_slice(&harness::noise(bytes, 1));
    let (theirs, ours) = shared.allocate(bytes);
    let own = shared.setup.allocate(MemoryKind::Device, bytes);
    let long = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| shared.memory.allocate(kind, 32 * MIB));
    let [long_src, long_dst] = long.map(Result::unwrap);
    let (backend, device) = (&shared.setup.backend, shared.setup.device);
    let queues = [
        backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap(),
        backend.lease_reserved_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap(),
    ];
    for queue in &queues {
        // CUDA's copy ends long after the call.
        (0..4).for_each(|_| shared.copy(&long_src, &long_dst));
        shared.copy(&src, &theirs);
        crate::copy(queue, &ours, &own);
        let dst = theirs.slice(1..).unwrap();
        submit(
            &**queue,
            &Operation::Fill { dst: &ours, pattern: Pattern::from_bytes(&[9]).unwrap() },
            Timing::Off,
        )
        .unwrap();
        crate::copy(queue, &own.slice(..bytes - 1).unwrap(), &ours.slice(1..).unwrap());
        shared.copy(&dst, &back.slice(1..).unwrap());
        shared.copy(&theirs.slice(..1).unwrap(), &back.slice(..1).unwrap());
        let (found, expected) = (back.read().unwrap(), src.read().unwrap());
        assert!(found[0] == 9 && found[1..] == expected[..bytes - 1]);
    }
    // Pageable memory, by way of staging buffers, and a fence.
    let pageable = shared.setup.allocate(MemoryKind::Pageable, bytes);
    pageable.write().unwrap().copy_from_slice(&src.read().unwrap());
    shared.manager.copy(&pageable, &ours).wait().unwrap();
    pageable.write().unwrap().fill(0);
    let fence = backend.fence(device, &[(&ours, Access::Write)]).unwrap();
    shared.copy(&theirs, &back);
    assert!(*back.read().unwrap() == *src.read().unwrap() && fence.is_complete());
    shared.manager.copy(&ours, &pageable).wait().unwrap();
    assert!(*pageable.read().unwrap() == *src.read().unwrap());
    drop((src, back, theirs, ours, own, long_src, long_dst, pageable, queues));
    shared.finish();
}

#[test]
fn bad_use_is_refused_and_loses_nothing() {
    let Some(shared) = shared() else { return };
    assert_eq!(shared.interop.allocate(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let huge = shared.interop.allocate(1 << 50).unwrap_err();
    assert_eq!(huge.kind(), ErrorKind::OutOfRange, "{huge}");
    let (theirs, ours) = shared.allocate(64);
    let src = shared.pinned(64);
    src.write().unwrap().fill(1);
    shared.copy(&src, &theirs);
    // A copy out of bounds.
    let handle = shared.handle(&ours);
    let device = shared.setup.backend.device(shared.setup.device).unwrap();
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&handle, 0, &handle, 32, 4096);
    let uses = [(&ours, Access::Write)];
    let refused = shared.setup.backend.submit(shared.setup.device, [encoder.finish()], &uses).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    drop(shared.submit([shared.double(&handle)], &ours));
    shared.copy(&theirs, &src);
    assert_eq!(*src.read().unwrap(), [2; 64]);
    drop((theirs, ours, src, handle));
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
            // As a driver refuses one that was imported before.
            let refused = refusing.allocate(MIB).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Device, "{refused}");
            let both = [interop.allocate(MIB).unwrap(), interop.allocate(MIB).unwrap()];
            drop(both);
            memory.drain().unwrap();
        }
        setup.backend.drain().unwrap();
        assert!(round == 0 || descriptors() == before, "{} descriptors became {}", before, descriptors());
        setup.assert_empty();
    }
}
