//! Devices and buffers of a framework, which goes on to submit by itself.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, create_shared_device, wgpu};
use transload_core::{
    Access, Backend, ErrorKind, MemoryKind, Operation, QueueLease, RawBuffer, StreamPriority, Timing,
    WorkloadType, submit,
};

use crate::{
    MIB, Setup, copy,
    framework::{DEVICES, Framework, adapter, frameworks, tested},
    setup,
    shaders::{doubling, pipeline},
};

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

impl Framework {
    pub(crate) fn adopted(&self) -> Setup {
        let backend = WgpuBackend::open(&self.config).unwrap();
        let device = backend.devices()[0].id;
        Setup { backend, host: CpuBackend::new().unwrap(), device }
    }

    pub(crate) fn buffer(&self, bytes: usize) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes as u64,
            usage: USAGE,
            mapped_at_creation: false,
        })
    }
}

impl Setup {
    /// Adopts a buffer of the framework.
    pub(crate) fn adopt(&self, buffer: &wgpu::Buffer) -> RawBuffer {
        // SAFETY: it is of the device, and not destroyed.
        unsafe { self.backend.adopt_buffer(self.device, buffer) }.unwrap()
    }

    /// Leases a queue for transfers in parts.
    fn reserved(&self) -> QueueLease {
        let (normal, memory) = (StreamPriority::Normal, WorkloadType::Memory);
        self.backend.lease_reserved_queue(self.device, normal, memory).unwrap()
    }

    pub(crate) fn numbers(&self, bytes: usize) -> RawBuffer {
        let pinned = self.filled(MemoryKind::Pinned, bytes, 0);
        let write = |to: &mut [u8]| {
            to.chunks_mut(4).zip(1_u32..).for_each(|(to, n)| to.copy_from_slice(&n.to_ne_bytes()));
        };
        write(&mut pinned.write().unwrap());
        pinned
    }
}

/// Checks that each number is that many times its place.
pub(crate) fn assert_times(found: &RawBuffer, times: u32) {
    assert_numbers(&found.read().unwrap(), times);
}

fn assert_numbers(found: &[u8], times: u32) {
    for (found, n) in found.chunks(4).zip(1_u32..) {
        assert_eq!(found, (n * times).to_ne_bytes());
    }
}

/// wgpu would zero memory that it has not seen written.
#[test]
fn fresh_buffer_of_a_framework_keeps_what_is_copied_to_it() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let (queue, pipeline) = (setup.queue(), pipeline(&framework.device));
        let buffer = framework.buffer(4 * MIB + 4);
        let there = setup.adopt(&buffer);
        let (src, back) = (setup.numbers(there.len()), setup.filled(MemoryKind::Pinned, there.len(), 0));
        for times in [2, 2] {
            copy(&queue, &src, &there);
            framework.queue.submit([doubling(&framework.device, &pipeline, &buffer)]);
            setup.backend.fence(setup.device, &[(&there, Access::Write)]).unwrap();
            copy(&queue, &there, &back);
            assert_times(&back, times);
        }
        drop((src, back, there, queue));
        setup.assert_empty();
    }
}

#[test]
fn contents_of_a_framework_are_read_and_written_in_place() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let buffer = framework.buffer(64);
        framework.queue.write_buffer(&buffer, 0, &[7; 64]);
        framework.queue.submit([]);
        let there = setup.adopt(&buffer);
        let back = setup.filled(MemoryKind::Pageable, 64, 0);
        copy(&setup.queue(), &setup.filled(MemoryKind::Pageable, 5, 9), &there.slice(3..8).unwrap());
        copy(&setup.queue(), &there, &back).wait().unwrap();
        let back = back.read().unwrap();
        assert_eq!((&back[..3], &back[3..8], &back[8..]), (&[7; 3][..], &[9; 5][..], &[7; 56][..]));
        assert_eq!(setup.backend.buffer(&there).unwrap(), buffer);
    }
}

#[test]
fn fence_is_complete_after_what_the_framework_submitted() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let pipeline = pipeline(&framework.device);
        let buffer = framework.buffer(16 * MIB);
        for _ in 0..3 {
            let commands = [(); 2].map(|()| doubling(&framework.device, &pipeline, &buffer));
            framework.queue.submit(commands);
            setup.backend.fence(setup.device, &[]).unwrap().wait().unwrap();
            assert!(framework.device.poll(wgpu::PollType::Poll).unwrap().is_queue_empty());
        }
    }
}

/// wgpu keeps them for its next submission.
#[test]
fn fence_is_complete_after_what_the_framework_writes_by_its_queue() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let buffer = framework.buffer(64);
        let (there, back) = (setup.adopt(&buffer), setup.filled(MemoryKind::Pageable, 64, 0));
        framework.queue.write_buffer(&buffer, 0, &[7; 64]);
        setup.backend.fence(setup.device, &[(&there, Access::Write)]).unwrap();
        copy(&setup.queue(), &there, &back).wait().unwrap();
        assert_eq!(*back.read().unwrap(), [7; 64]);
    }
}

#[test]
fn framework_submits_while_other_threads_copy() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let (pipeline, buffer) = (pipeline(&framework.device), framework.buffer(4096));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for byte in 0..50 {
                    let queue = setup.queue();
                    let there = setup.allocate(MemoryKind::Device, 1000);
                    copy(&queue, &setup.filled(MemoryKind::Pinned, 1000, byte), &there);
                    let back = setup.filled(MemoryKind::Pageable, 1000, 0);
                    copy(&queue, &there, &back);
                    assert!(back.read().unwrap().iter().all(|found| *found == byte));
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                framework.queue.submit([doubling(&framework.device, &pipeline, &buffer)]);
                framework.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
            }
        });
        setup.assert_empty();
    }
}

/// The default handler of a framework's device panics.
#[test]
fn refused_commands_of_an_adopted_device_are_an_error() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let there = setup.allocate(MemoryKind::Device, 64);
        let handle = setup.backend.buffer(&there).unwrap();
        let errors = framework.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let mut encoder = framework.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&handle, 0, &handle, 32, 4096);
        let commands = encoder.finish();
        drop(errors);
        let refused = setup.backend.submit(setup.device, [commands], &[(&there, Access::Write)]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        let commands = [doubling(&framework.device, &pipeline(&framework.device), &handle)];
        let submitted = setup.backend.submit(setup.device, commands, &[(&there, Access::Write)]);
        submitted.unwrap().wait().unwrap();
    }
}

#[test]
fn copies_outlive_the_handles_of_the_framework() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let buffer = framework.buffer(16 * MIB);
        let there = setup.adopt(&buffer);
        drop((framework, buffer));
        let queue = setup.queue();
        let back = setup.filled(MemoryKind::Pinned, there.len(), 0);
        copy(&queue, &setup.filled(MemoryKind::Pinned, there.len(), 3), &there);
        copy(&queue, &there, &back);
        drop((queue, there, setup));
        assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
    }
}

/// A buffer that wgpu made is of the family of wgpu's queue.
#[test]
fn adopted_buffers_are_copied_by_reserved_queues() {
    let Some(setup) = setup() else { return };
    let (backend, device, bytes) = (&setup.backend, setup.device, 4 * MIB);
    // Before there are any; later ones would be of wgpu's queue.
    let queues = [setup.reserved(), setup.reserved()];
    let theirs = backend.device(device).unwrap().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: bytes as u64,
        usage: USAGE,
        mapped_at_creation: false,
    });
    // SAFETY: it is a buffer of the device, and not destroyed.
    let there = unsafe { backend.adopt_buffer(device, &theirs) }.unwrap();
    for byte in 1..=4 {
        let back = setup.filled(MemoryKind::Pageable, bytes, 0);
        copy(&queues[0], &setup.filled(MemoryKind::Pageable, bytes, byte), &there);
        let measured = submit(&*queues[1], &Operation::Copy { src: &there, dst: &back }, Timing::Measured);
        measured.unwrap().wait().unwrap();
        assert!(back.read().unwrap().iter().all(|read| *read == byte));
    }
}

#[test]
fn shared_device_has_queues_for_transfers_unless_a_buffer_is_adopted() {
    // Those of other APIs have one queue each.
    let is_beneath = std::env::var_os(crate::framework::DEVICES).is_none();
    for (framework, copies) in frameworks().iter().zip([is_beneath, false]) {
        let setup = framework.adopted();
        let queues = || {
            let all = [setup.reserved(), setup.reserved(), setup.queue()];
            let ids = all.iter().map(|queue| queue.timeline().id());
            ids.collect::<std::collections::BTreeSet<_>>().len()
        };
        let reserved = || setup.backend.staging_hints(setup.device).queues;
        let found = (queues(), reserved());
        // Two, and wgpu's; where there is a family with one queue only, one.
        assert!(found == (1, 1) && !copies || copies && [(3, 2), (2, 1)].contains(&found), "{found:?}");
        let there = setup.adopt(&framework.buffer(64));
        assert_eq!((queues(), reserved()), (1, 1));
        drop(there);
        assert_eq!((queues(), reserved()), found);
    }
}

/// In order with the framework's shaders by waits for transfers before them, and fences after. What these see of copies by other queues is
/// tested only where a family of queues only copies: elsewhere all is one queue of Vulkan.
#[test]
fn transfers_are_in_order_with_shaders_of_the_framework() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let pipeline = pipeline(&framework.device);
        let queues = [setup.reserved(), setup.reserved()];
        let there = setup.allocate(MemoryKind::Device, 4 * MIB);
        let (src, back) = (setup.numbers(there.len()), setup.filled(MemoryKind::Pinned, there.len(), 0));
        let handle = setup.backend.buffer(&there).unwrap();
        for round in 0..4 {
            copy(&queues[round % 2], &src, &there).wait().unwrap();
            framework.queue.submit([(); 2].map(|()| doubling(&framework.device, &pipeline, &handle)));
            setup.backend.fence(setup.device, &[(&there, Access::Write)]).unwrap();
            copy(&queues[1 - round % 2], &there, &back).wait().unwrap();
            assert_times(&back, 4);
        }
        // The framework goes on after the backend's end, and sees the last copy.
        copy(&queues[0], &src, &there).wait().unwrap();
        drop((src, back, there, queues, setup));
        let doubled = doubling(&framework.device, &pipeline, &handle);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let size = (4 * MIB) as u64;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let read = framework.device.create_buffer(&descriptor);
        let mut encoder = framework.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&handle, 0, &read, 0, size);
        framework.queue.submit([doubled, encoder.finish()]);
        read.map_async(wgpu::MapMode::Read, .., Result::unwrap);
        framework.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        assert_numbers(&read.get_mapped_range(..).unwrap(), 2);
    }
}

#[test]
fn devices_that_cannot_be_adopted_are_refused() {
    let Some(adapter) = adapter().filter(|_| tested().1 == wgpu::Backends::VULKAN) else { return };
    let descriptor = wgpu::DeviceDescriptor::default();
    let (plain, plain_queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
    let (shared, queue) = create_shared_device(&adapter, &descriptor).unwrap();
    let open = |config: WgpuBackendConfig| WgpuBackend::open(&config).unwrap_err();
    let refused = open(WgpuBackendConfig::default().with_device(plain, plain_queue.clone()));
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("create_shared_device"), "{refused}");
    let refused = open(WgpuBackendConfig::default().with_device(shared, plain_queue));
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    drop(queue);

    let mut greedy = wgpu::DeviceDescriptor::default();
    greedy.required_limits.max_bind_groups = u32::MAX;
    let refused = create_shared_device(&adapter, &greedy).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("max_bind_groups"), "{refused}");
    let missing = wgpu::Features::all() - adapter.features();
    let greedy = wgpu::DeviceDescriptor { required_features: missing, ..wgpu::DeviceDescriptor::default() };
    let refused = create_shared_device(&adapter, &greedy).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}

/// wgpu tells the handler of the queue's own device, if there is one, and goes on as if the work was done.
#[test]
fn queue_of_another_device_is_refused() {
    for framework in frameworks() {
        let Some(adapter) = adapter() else { return };
        for has_handler in [false, true] {
            let opened = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()));
            let (other, queue) = opened.unwrap();
            if has_handler {
                other.on_uncaptured_error(Arc::new(|_| {}));
            }
            let given = |config: WgpuBackendConfig| match env::var_os(DEVICES) {
                Some(_) => config.with_device(framework.device.clone(), queue.clone()),
                // SAFETY: no surface is configured for it, and wgpu's queue is used as such only.
                None => unsafe { config.with_foreign_device(framework.device.clone(), queue.clone()) },
            };
            let base = if env::var_os(DEVICES).is_some() { tested().0 } else { WgpuBackendConfig::default() };
            let refused = WgpuBackend::open(&given(base)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
        // The device is as it was.
        let setup = framework.adopted();
        let there = setup.adopt(&framework.buffer(64));
        copy(&setup.queue(), &setup.filled(MemoryKind::Pinned, 64, 7), &there).wait().unwrap();
    }
}

#[test]
fn buffers_that_cannot_be_adopted_are_refused() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let map = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        for (usage, size, mapped_at_creation) in
            [(map, 64, false), (wgpu::BufferUsages::STORAGE, 64, false), (USAGE, 6, false), (USAGE, 64, true)]
        {
            let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation };
            let buffer = framework.device.create_buffer(&descriptor);
            // SAFETY: it is of the device, and not destroyed.
            let refused = unsafe { setup.backend.adopt_buffer(setup.device, &buffer) }.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
        let destroyed = framework.buffer(64);
        destroyed.destroy();
        // SAFETY: nothing is done with it.
        let refused = unsafe { setup.backend.adopt_buffer(setup.device, &destroyed) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        setup.assert_empty();
    }
}

#[test]
fn buffer_that_was_destroyed_since_is_refused() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let buffer = framework.buffer(64);
        let there = setup.adopt(&buffer);
        buffer.destroy();
        let src = setup.filled(MemoryKind::Pinned, 64, 1);
        for (src, dst) in [(&src, &there), (&there, &src)] {
            let refused = submit(&*setup.queue(), &Operation::Copy { src, dst }, Timing::Off).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
    }
}

/// wgpu says nothing of commands that it drops because it has given the device up.
#[test]
fn commands_for_a_device_that_wgpu_gave_up_are_an_error() {
    for framework in frameworks() {
        let setup = framework.adopted();
        let there = setup.allocate(MemoryKind::Device, 64);
        let handle = setup.backend.buffer(&there).unwrap();
        let commands = [doubling(&framework.device, &pipeline(&framework.device), &handle)];
        framework.device.destroy();
        let refused = setup.backend.submit(setup.device, commands, &[(&there, Access::Write)]).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::InvalidArgument | ErrorKind::DeviceLost), "{refused:?}");
        drop((there, handle));
        drop(setup.backend.drain());
        assert!(setup.backend.resource_counts().is_empty(), "{}", setup.backend.resource_counts());
    }
}

#[test]
fn two_backends_adopt_one_device() {
    for framework in frameworks() {
        let (one, two) = (framework.adopted(), framework.adopted());
        let there = one.allocate(MemoryKind::Device, 100);
        copy(&one.queue(), &one.filled(MemoryKind::Pinned, 100, 5), &there);
        let refused = two.backend.buffer(&there).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let back = two.filled(MemoryKind::Pinned, 100, 0);
        copy(&two.queue(), &back, &two.allocate(MemoryKind::Device, 100)).wait().unwrap();
        copy(&one.queue(), &there, &back).wait().unwrap();
        assert_eq!(*back.read().unwrap(), [5; 100]);
    }
}
