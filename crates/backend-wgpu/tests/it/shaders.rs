//! wgpu's own work on buffers of this backend, in order with copies.

use std::sync::mpsc;

use transload_backend_wgpu::wgpu;
use transload_core::{Access, Backend, ErrorKind, MemoryKind, Operation, RawBuffer, Timing, submit};

use crate::{
    MIB, Setup, copy,
    framework::{DEVICES, Framework, frameworks},
    setup,
};

const DOUBLE: &str = "
    @group(0) @binding(0) var<storage, read_write> numbers: array<u32>;
    @compute @workgroup_size(64)
    fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
        for (var i = id.x; i < arrayLength(&numbers); i += groups.x * 64u) { numbers[i] = numbers[i] * 2u; }
    }";

pub(crate) fn pipeline(device: &wgpu::Device) -> wgpu::ComputePipeline {
    let source = wgpu::ShaderSource::Wgsl(DOUBLE.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    })
}

#[path = "../../examples/shader.rs"]
mod example;

#[test]
fn example_uploads_runs_a_shader_and_downloads() {
    if setup().is_some() {
        example::main().unwrap();
    }
}

/// Commands that double each number of the buffer.
pub(crate) fn double(
    setup: &Setup,
    pipeline: &wgpu::ComputePipeline,
    numbers: &RawBuffer,
) -> wgpu::CommandBuffer {
    let handle = match numbers.place().kind {
        // SAFETY: the commands are submitted with the buffer among their uses.
        MemoryKind::Mapped => unsafe { setup.backend.mapped_buffer(numbers) },
        _ => setup.backend.buffer(numbers),
    };
    let handle = handle.unwrap();
    doubling(setup.backend.device(setup.device).unwrap(), pipeline, &handle)
}

pub(crate) fn doubling(
    device: &wgpu::Device,
    pipeline: &wgpu::ComputePipeline,
    handle: &wgpu::Buffer,
) -> wgpu::CommandBuffer {
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encode_doubling(&mut encoder, device, pipeline, handle);
    encoder.finish()
}

fn encode_doubling(
    encoder: &mut wgpu::CommandEncoder,
    device: &wgpu::Device,
    pipeline: &wgpu::ComputePipeline,
    handle: &wgpu::Buffer,
) {
    let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: handle.as_entire_binding() }],
    });
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, &bindings, &[]);
    pass.dispatch_workgroups(256, 1, 1);
}

#[test]
fn shaders_run_in_order_with_copies() {
    setup().into_iter().for_each(run_in_order);
}

#[test]
fn shaders_run_in_order_on_adopted_devices() {
    frameworks().iter().map(Framework::adopted).for_each(run_in_order);
}

fn run_in_order(setup: Setup) {
    let (queue, pipeline) = (setup.queue(), pipeline(setup.backend.device(setup.device).unwrap()));
    let bytes = 4 * MIB;
    let (src, back) =
        (setup.filled(MemoryKind::Pinned, bytes, 0), setup.filled(MemoryKind::Pinned, bytes, 0));
    src.write().unwrap().chunks_mut(4).zip(1_u32..).for_each(|(to, n)| to.copy_from_slice(&n.to_ne_bytes()));
    let (one, two) = (setup.allocate(MemoryKind::Device, bytes), setup.allocate(MemoryKind::Device, bytes));
    for _ in 0..3 {
        // Copy, double, copy, double, copy: each needs what the one before wrote, and nobody waits in between.
        copy(&queue, &src, &one);
        let commands = double(&setup, &pipeline, &one);
        setup.backend.submit(setup.device, [commands], &[(&one, Access::Write)]).unwrap();
        copy(&queue, &one, &two);
        let commands = double(&setup, &pipeline, &two);
        let doubled = setup.backend.submit(setup.device, [commands], &[(&two, Access::Write)]).unwrap();
        copy(&queue, &two, &back);
        for (found, n) in back.read().unwrap().chunks(4).zip(1_u32..) {
            assert_eq!(found, (n * 4).to_ne_bytes());
        }
        assert!(doubled.is_complete());
    }
    drop((src, back, one, two, queue, pipeline));
    setup.assert_empty();
}

/// wgpu orders what is done by one handle. The validation layer sees it if the passes do not wait.
#[test]
fn passes_of_one_submission_by_handles_asked_for_twice_are_in_order() {
    let Some(setup) = setup() else { return };
    let device = setup.backend.device(setup.device).unwrap();
    let (queue, pipeline) = (setup.queue(), pipeline(device));
    let numbers = setup.allocate(MemoryKind::Device, MIB);
    copy(&queue, &setup.filled(MemoryKind::Pinned, MIB, 1), &numbers);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let slice = numbers.slice(16..32).unwrap();
    let handles = [&numbers, &slice, &numbers].map(|buffer| setup.backend.buffer(buffer).unwrap());
    handles.iter().for_each(|handle| encode_doubling(&mut encoder, device, &pipeline, handle));
    setup.backend.submit(setup.device, [encoder.finish()], &[(&numbers, Access::Write)]).unwrap();
    let back = setup.filled(MemoryKind::Pageable, MIB, 0);
    copy(&queue, &numbers, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 8));
    assert!(handles.iter().all(|handle| *handle == handles[0]));
}

#[test]
fn handle_that_was_destroyed_is_replaced() {
    let Some(setup) = setup().filter(|_| std::env::var_os(DEVICES).is_none()) else { return };
    let (queue, pipeline) = (setup.queue(), pipeline(setup.backend.device(setup.device).unwrap()));
    let numbers = setup.allocate(MemoryKind::Device, 64);
    copy(&queue, &setup.filled(MemoryKind::Pinned, 64, 1), &numbers);
    setup.backend.buffer(&numbers).unwrap().destroy();
    let commands = double(&setup, &pipeline, &numbers);
    setup.backend.submit(setup.device, [commands], &[(&numbers, Access::Write)]).unwrap();
    let back = setup.filled(MemoryKind::Pageable, 64, 0);
    copy(&queue, &numbers, &back).wait().unwrap();
    assert_eq!(*back.read().unwrap(), [2; 64]);
}

#[test]
fn commands_that_wgpu_refuses_are_an_error_and_later_ones_run() {
    let Some(setup) = setup() else { return };
    let (queue, device) = (setup.queue(), setup.backend.device(setup.device).unwrap());
    let pipeline = pipeline(device);
    let numbers = setup.allocate(MemoryKind::Device, 64);
    copy(&queue, &setup.filled(MemoryKind::Pinned, 64, 1), &numbers);
    // A copy out of bounds.
    let handle = setup.backend.buffer(&numbers).unwrap();
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&handle, 0, &handle, 32, 4096);
    let refused = setup.backend.submit(setup.device, [encoder.finish()], &[(&numbers, Access::Write)]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let commands = double(&setup, &pipeline, &numbers);
    setup.backend.submit(setup.device, [commands], &[(&numbers, Access::Write)]).unwrap();
    let back = setup.filled(MemoryKind::Pageable, 64, 0);
    copy(&queue, &numbers, &back).wait().unwrap();
    assert_eq!(*back.read().unwrap(), [2; 64]);
}

/// Commands of another device of the same instance, and of one of another instance, in which wgpu does not know them.
#[test]
fn commands_of_another_device_are_refused_and_lose_nothing() {
    let (Some(setup), Some(other)) = (setup(), setup()) else { return };
    let two: Vec<_> =
        [frameworks(), frameworks()].into_iter().flat_map(|all| all.into_iter().next()).collect();
    let adopted = two.iter().map(Framework::adopted);
    let setups: Vec<_> = [setup, other].into_iter().chain(adopted).collect();
    for (setup, theirs) in setups.iter().zip(setups.iter().cycle().skip(1)) {
        let device = setup.backend.device(setup.device).unwrap();
        let theirs = theirs.backend.device(theirs.device).unwrap();
        let commands = |device: &wgpu::Device| {
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()).finish()
        };
        let numbers = setup.allocate(MemoryKind::Device, 64);
        copy(&setup.queue(), &setup.filled(MemoryKind::Pinned, 64, 1), &numbers).wait().unwrap();
        // More than the other instance has, also for tests that run meanwhile.
        let mut all: Vec<_> = (0..1000).map(|_| commands(theirs)).collect();
        let uses = [(&numbers, Access::Write)];
        let refused = setup.backend.submit(setup.device, all.pop(), &uses).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        let commands = double(setup, &pipeline(device), &numbers);
        setup.backend.submit(setup.device, [commands], &uses).unwrap();
        let back = setup.filled(MemoryKind::Pageable, 64, 0);
        copy(&setup.queue(), &numbers, &back).wait().unwrap();
        assert_eq!(*back.read().unwrap(), [2; 64]);
        drop((numbers, back));
        setup.assert_empty();
    }
}

#[test]
fn memory_of_the_device_has_a_handle_which_keeps_it_alive() {
    let Some(setup) = setup() else { return };
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let refused = setup.backend.buffer(&setup.filled(kind, 64, 0)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
    let handle = setup.backend.buffer(&setup.allocate(MemoryKind::Device, 101)).unwrap();
    assert!(handle.size() < 116 && handle.size().is_multiple_of(4));
    setup.backend.drain().unwrap();
    // By wgpu's own interface wgpu alone counts it.
    let kept = if std::env::var_os(DEVICES).is_some() { 0 } else { 101 };
    let counts = setup.backend.resource_counts();
    assert_eq!(counts.bytes - counts.cached_bytes, kept);
    let (backend, host) = (setup.backend, setup.host);
    drop((backend, host));
    // The last handle of the device.
    drop(handle);
}

/// wgpu calls it while it submits, under the queue's lock.
#[test]
fn callback_of_wgpu_that_submits_is_refused_and_does_not_hang() {
    let Some(setup) = setup() else { return };
    let (queue, device) = (setup.queue(), setup.backend.device(setup.device).unwrap());
    let (src, dst) = (setup.filled(MemoryKind::Pinned, 64, 1), setup.allocate(MemoryKind::Device, 64));
    let used = dst.clone();
    let mapped = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let (sender, outcome) = mpsc::channel();
    mapped.map_async(wgpu::MapMode::Read, .., move |_| {
        let copied = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off);
        sender.send(copied.map(drop)).unwrap();
    });
    let encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    setup
        .backend
        .submit(setup.device, [encoder.finish()], &[(&used, Access::Write)])
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(outcome.try_recv().unwrap().unwrap_err().kind(), ErrorKind::Busy);
}

/// What it submits there does not disturb the submission that it interrupts.
#[test]
fn callback_of_wgpu_submits_to_another_device() {
    let (Some(setup), Some(other)) = (setup(), setup()) else { return };
    let device = setup.backend.device(setup.device).unwrap();
    let used = setup.allocate(MemoryKind::Device, 64);
    let mapped = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let (sender, outcome) = mpsc::channel();
    mapped.map_async(wgpu::MapMode::Read, .., move |_| {
        let theirs = other.backend.device(other.device).unwrap();
        let encoder = theirs.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let submitted = other.backend.submit(other.device, [encoder.finish()], &[]);
        sender.send(submitted.and_then(|fence| fence.wait())).unwrap();
    });
    let encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let submitted = setup.backend.submit(setup.device, [encoder.finish()], &[(&used, Access::Write)]);
    submitted.unwrap().wait().unwrap();
    outcome.try_recv().unwrap().unwrap();
}

#[test]
fn overlapping_uses_of_one_submission_are_merged() {
    let Some(setup) = setup() else { return };
    let numbers = setup.allocate(MemoryKind::Device, 64);
    let uses = [
        (&numbers, Access::Read),
        (&numbers.slice(8..16).unwrap(), Access::Write),
        (&numbers, Access::Write),
    ];
    let encoder = setup
        .backend
        .device(setup.device)
        .unwrap()
        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    setup.backend.submit(setup.device, [encoder.finish()], &uses).unwrap().wait().unwrap();
}

#[test]
fn iterator_of_commands_may_submit_and_panic() {
    let Some(setup) = setup() else { return };
    let (queue, device) = (setup.queue(), setup.backend.device(setup.device).unwrap());
    let (src, dst) = (setup.filled(MemoryKind::Pinned, 64, 1), setup.allocate(MemoryKind::Device, 64));
    let commands = || {
        copy(&queue, &src, &dst).wait().unwrap();
        device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()).finish()
    };
    let uses = [(&dst, Access::Write)];
    setup.backend.submit(setup.device, std::iter::once_with(commands), &uses).unwrap().wait().unwrap();
    let panics = std::iter::once_with(|| panic!("by the user"));
    let panicked = std::panic::AssertUnwindSafe(|| setup.backend.submit(setup.device, panics, &uses));
    assert!(std::panic::catch_unwind(panicked).is_err());
    copy(&queue, &src, &dst).wait().unwrap();
}
