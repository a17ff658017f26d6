//! Kernel launches: ordered with all streams, keeping their memory alive, refused if invalid.

mod executor;
mod timing;

use std::time::Duration;

use transload_core::{Access, ErrorKind, Fence, MemoryKind, RawBuffer};
use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, trace};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaKernel, CudaModule, CudaStream, LaunchConfig};

use crate::{
    stream::capture::beside_a_global_capture,
    support::{
        gate::within,
        setup::{Setup, noise},
    },
};

#[path = "../../../src/launch/arguments.rs"]
#[allow(unreachable_pub, reason = "it is public in the crate")]
mod arguments;

pub(crate) const SAXPY: &str = include_str!("../../../examples/kernels/saxpy.ptx");
pub(crate) const SPIN: &str = include_str!("../../../examples/kernels/spin.ptx");

/// Runs a test that could deadlock, with a time limit.
pub(crate) fn watched(body: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(60), body);
}

/// Numbers whose sums are exact.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    noise(count, seed).into_iter().map(f32::from).collect()
}

pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(crate) fn saxpy_of(setup: &Setup) -> CudaKernel {
    CudaModule::from_ptx(&setup.device, SAXPY).unwrap().kernel("transload_saxpy").unwrap()
}

/// y = a * x + y on buffers of `f32`.
pub(crate) fn saxpy(
    kernel: &CudaKernel,
    stream: &CudaStream,
    a: f32,
    x: &RawBuffer,
    y: &RawBuffer,
) -> transload_core::Result<Fence> {
    let count = (y.len() / 4) as u64;
    let launch = kernel.launch(LaunchConfig::for_elements(count, 128)).arg(a).reads(x).reads_writes(y);
    // SAFETY: the kernel takes these four parameters and touches `count` numbers of each buffer.
    unsafe { launch.arg(count).enqueue(stream) }
}

#[test]
fn module_load_and_first_launch_leave_captures_valid() {
    let setup = Setup::new();
    let [captured, stream] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
    let [x, y] = [(); 2].map(|()| setup.device(400));
    beside_a_global_capture(&captured, || {
        let kernel = CudaModule::from_ptx(&setup.device, SAXPY)?.kernel("transload_saxpy")?;
        saxpy(&kernel, &stream, 1.0, &x, &y)?.wait()
    });
    drop((captured, stream, x, y));
    setup.finish();
}

#[test]
fn launch_is_ordered_between_upload_and_download() {
    watched(|| {
        let setup = Setup::new();
        let kernel = saxpy_of(&setup);
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
        for round in 0..10 {
            let (x, y) = (numbers(30_001, round), numbers(30_001, round + 100));
            let (host_x, host_y) = (setup.pinned(&bytes(&x)), setup.pinned(&bytes(&y)));
            let (there_x, there_y) = (setup.device(x.len() * 4), setup.device(x.len() * 4));
            let back = setup.pinned(&vec![0; x.len() * 4]);
            let trace = trace::start();
            drop(streams[0].copy_from_host_async(&host_x, &there_x));
            drop(streams[0].copy_from_host_async(&host_y, &there_y));
            let fence = saxpy(&kernel, &streams[1], 3.0, &there_x, &there_y).unwrap();
            let down = streams[2].copy_to_host_async(&there_y, &back);
            let calls = trace.calls_of_this_thread();
            assert!(
                calls.iter().all(|call| !call.name.contains("Synchronize")),
                "the host waits for nothing"
            );
            drop((host_x, host_y, there_x, there_y));
            down.wait().unwrap();
            assert!(fence.is_complete());
            let expected: Vec<_> = x.iter().zip(&y).map(|(x, y)| 3.0 * x + y).collect();
            assert!(*back.read().unwrap() == bytes(&expected)[..], "round {round}");
        }
        drop((streams, kernel));
        setup.finish();
    });
}

#[test]
fn dropping_every_handle_right_after_enqueueing_is_safe() {
    watched(|| {
        let setup = Setup::new();
        let (x, y) = (numbers(200_000, 1), numbers(200_000, 2));
        let back = setup.pinned(&vec![0; x.len() * 4]);
        let there = setup.device(x.len() * 4);
        {
            let module = CudaModule::from_ptx(&setup.device, SAXPY).unwrap();
            let stream = CudaStream::new(&setup.device).unwrap();
            let host = setup.pinned(&bytes(&x));
            let there_x = setup.device(x.len() * 4);
            drop(stream.copy_from_host_async(&host, &there_x));
            drop(stream.copy_from_host_async(&setup.pinned(&bytes(&y)), &there));
            let kernel = module.kernel("transload_saxpy").unwrap();
            drop(module);
            drop(saxpy(&kernel, &stream, 2.0, &there_x, &there).unwrap());
        }
        // New allocations must not get memory that the launch still reads.
        let others: Vec<_> = (0..4).map(|seed| setup.pinned(&noise(x.len() * 4, seed))).collect();
        let stream = CudaStream::new(&setup.device).unwrap();
        stream.copy_to_host_async(&there, &back).wait().unwrap();
        let expected: Vec<_> = x.iter().zip(&y).map(|(x, y)| 2.0 * x + y).collect();
        assert!(*back.read().unwrap() == bytes(&expected)[..]);
        drop((others, stream, there, back));
        setup.finish();
    });
}

#[test]
fn kernel_on_mapped_memory_touches_only_its_slice() {
    let setup = Setup::new();
    let module = CudaModule::from_ptx(&setup.device, SAXPY).unwrap();
    let kernel = module.kernel("transload_add").unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (numbers(1000, 3), numbers(1000, 4));
    let mapped = setup.memory.allocate(MemoryKind::Mapped, 12_000).unwrap();
    let slice = |at: usize| mapped.slice(at..at + 4000).unwrap();
    slice(0).write().unwrap().copy_from_slice(&bytes(&x));
    slice(4000).write().unwrap().copy_from_slice(&bytes(&y));
    slice(8000).write().unwrap().fill(0xEE);
    let (one, two, sum) = (slice(0), slice(4000), slice(8000));
    let launch = kernel.launch(LaunchConfig::linear(2, 64)).reads(&one).reads(&two).writes(&sum).arg(999_u64);
    // SAFETY: the kernel takes these parameters and touches 999 numbers of each slice.
    drop(unsafe { launch.enqueue(&stream) }.unwrap());
    let seen = mapped.read().unwrap();
    let expected: Vec<_> = x.iter().zip(&y).take(999).map(|(x, y)| x + y).collect();
    assert!(seen[8000..11_996] == bytes(&expected)[..]);
    assert!(seen[11_996..].iter().all(|byte| *byte == 0xEE) && seen[..4000] == bytes(&x)[..]);
    drop(seen);
    drop((one, two, sum, mapped, stream, kernel, module));
    setup.finish();
}

#[test]
fn host_view_and_launch_of_declared_memory_exclude() {
    let setup = Setup::new();
    let kernel = saxpy_of(&setup);
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (
        setup.memory.allocate(MemoryKind::Mapped, 400).unwrap(),
        setup.memory.allocate(MemoryKind::Mapped, 400).unwrap(),
    );
    x.write().unwrap().copy_from_slice(&bytes(&[2.0; 100]));
    y.write().unwrap().copy_from_slice(&bytes(&[1.0; 100]));
    let view = y.read().unwrap();
    assert_eq!(saxpy(&kernel, &stream, 1.0, &x, &y).unwrap_err().kind(), ErrorKind::Busy);
    drop(view);
    let view = x.read().unwrap();
    drop(saxpy(&kernel, &stream, 1.0, &x, &y).unwrap());
    assert!(*y.read().unwrap() == bytes(&[3.0; 100])[..], "readers may look on, and a view waits");
    drop(view);
    drop((x, y, stream, kernel));
    setup.finish();
}

#[test]
fn kernel_reports_its_limits_and_parameters() {
    let setup = Setup::new();
    let kernel = saxpy_of(&setup);
    assert_eq!((kernel.name(), kernel.device()), ("transload_saxpy", setup.device.id()));
    assert!((32..=1024).contains(&kernel.max_threads_per_block()));
    assert!(kernel.max_shared_bytes() >= 48 << 10);
    match kernel.parameter_sizes() {
        Some(sizes) => assert_eq!(sizes, [4, 8, 8, 8]),
        None => println!("skipped: this driver does not tell a kernel's parameters"),
    }
    drop(kernel);
    setup.finish();
}

#[test]
fn missing_modules_and_kernels_are_refused_by_name() {
    let setup = Setup::new();
    let error = CudaModule::from_ptx(&setup.device, "this is no PTX").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("rejects this module"), "{error}");
    let error = CudaModule::from_ptx(&setup.device, ".version 6.0\0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // SAFETY: an empty image is refused before it is read.
    let error = unsafe { CudaModule::from_image(&setup.device, &[]) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let module = CudaModule::from_ptx(&setup.device, SAXPY).unwrap();
    for name in ["transload_axpy", "", "with\0NUL"] {
        let error = module.kernel(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("{name:?}")) && text.contains("transload_saxpy, transload_add"),
            "{text}"
        );
    }
    drop(module);
    let text = format!("{SPIN}\0");
    // SAFETY: it is NUL-terminated text.
    let module = unsafe { CudaModule::from_image(&setup.device, text.as_bytes()) }.unwrap();
    assert_eq!(module.device(), setup.device.id());
    module.kernel("transload_spin").unwrap();
    drop(module);
    setup.finish();
}

#[test]
fn invalid_launches_are_refused_with_valid_values() {
    watched(|| {
        let setup = Setup::new();
        let kernel = saxpy_of(&setup);
        let stream = CudaStream::new(&setup.device).unwrap();
        let (x, y) = (setup.device(4096), setup.device(4096));
        let refused = |launch: transload_streams::Launch<'_>, kind, part: &str| {
            // SAFETY: a refused launch does not run.
            let error = unsafe { launch.enqueue(&stream) }.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        };
        let shaped = |config| kernel.launch(config).arg(1.0_f32).reads(&x).writes(&y).arg(1024_u64);
        let most = kernel.max_threads_per_block();
        refused(shaped(LaunchConfig::linear(0, 32)), ErrorKind::InvalidArgument, "valid are 1 to");
        refused(shaped(LaunchConfig::linear(1, 0)), ErrorKind::InvalidArgument, "valid are 1 to");
        let limit = format!("at most {most} in all");
        refused(shaped(LaunchConfig::linear(1, most + 1)), ErrorKind::InvalidArgument, &limit);
        let shared = LaunchConfig::linear(1, 32).with_shared_bytes(u32::MAX);
        refused(
            shaped(shared),
            ErrorKind::InvalidArgument,
            &format!("can have {}", kernel.max_shared_bytes()),
        );

        let invalid = |config, part| refused(shaped(config), ErrorKind::InvalidArgument, part);
        invalid(LaunchConfig::for_elements(0, 256), "valid are 1 to");
        let small = LaunchConfig::linear(1, 32);
        invalid(LaunchConfig { block: (1, 1, 65), ..small }, "1024 × 1024 × 64");
        invalid(LaunchConfig { block: (u32::MAX, u32::MAX, u32::MAX), ..small }, "1024 × 1024 × 64");
        invalid(LaunchConfig { grid: (1, 65_536, 1), ..small }, "65535");
        if kernel.parameter_sizes().is_some() {
            let takes = "[4, 8, 8, 8]";
            refused(
                kernel.launch(small).arg(1.0_f32).reads(&x).writes(&y),
                ErrorKind::InvalidArgument,
                takes,
            );
            let wrong = kernel.launch(small).arg(1.0_f64).reads(&x).writes(&y).arg(1_u64);
            refused(wrong, ErrorKind::InvalidArgument, takes);
            let more = kernel.launch(small).arg(1.0_f32).reads(&x).writes(&y).arg(1_u64).arg(1_u64);
            refused(more, ErrorKind::InvalidArgument, takes);
        }

        let pinned = setup.pinned(&[0; 4096]);
        let out_of_reach = kernel.launch(small).arg(1.0_f32).reads(&pinned).writes(&y).arg(1024_u64);
        refused(out_of_reach, ErrorKind::Unsupported, "cannot use cpu/pinned memory");
        let mut slice = [9_u8; 64];
        {
            // SAFETY: the value is dropped at the end of this block and never cloned.
            let pageable = unsafe { transload_core::borrow_mut(&mut slice) };
            let launch = kernel.launch(small).arg(1.0_f32).reads(&x).writes(&*pageable).arg(16_u64);
            refused(launch, ErrorKind::Unsupported, "cannot use cpu/pageable memory");
            refused(
                kernel.launch(small).declares(&*pageable, Access::Read),
                ErrorKind::Unsupported,
                "mapped",
            );
        }

        let (low, high) = (x.slice(..3000).unwrap(), x.slice(1000..).unwrap());
        let crossing = kernel.launch(small).arg(1.0_f32).reads(&low).writes(&high).arg(1_u64);
        refused(crossing, ErrorKind::Overlap, "declare one range that contains both");

        // No claim is left: all the memory is usable at once.
        let fences: Vec<_> = (0..3).map(|_| saxpy(&kernel, &stream, 0.0, &x, &y).unwrap()).collect();
        drop((fences, low, high, x, y, pinned, stream, kernel));
        setup.finish();
    });
}

#[test]
fn range_declared_twice_counts_once_as_written() {
    watched(|| {
        let setup = Setup::new();
        let kernel = saxpy_of(&setup);
        let (one, two) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
        let y = setup.memory.allocate(MemoryKind::Mapped, 4000).unwrap();
        y.write().unwrap().copy_from_slice(&bytes(&[1.0; 1000]));
        // In place: y = 2 y + y. Each launch must follow the one before, on any stream.
        for round in 0..6 {
            let stream = if round % 2 == 0 { &one } else { &two };
            drop(saxpy(&kernel, stream, 2.0, &y, &y).unwrap());
        }
        assert!(*y.read().unwrap() == bytes(&[729.0; 1000])[..]);
        // A written slice of a range that is read: all of the range counts as written.
        let slice = y.slice(2000..).unwrap();
        let launch = kernel.launch(LaunchConfig::linear(1, 32)).arg(0.0_f32).reads(&y).reads_writes(&slice);
        // SAFETY: the kernel takes these parameters and touches 500 numbers of each.
        drop(unsafe { launch.arg(500_u64).enqueue(&one) }.unwrap());
        let beginning = y.slice(..4).unwrap();
        match beginning.try_read() {
            Ok(view) => assert!(*view == 729.0_f32.to_le_bytes(), "it may be over already on a real device"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy),
        }
        assert!(*y.read().unwrap() == bytes(&[729.0; 1000])[..]);
        // Several readers of one range do not conflict.
        let launch =
            kernel.launch(LaunchConfig::linear(1, 32)).arg(0.0_f32).reads(&beginning).reads_writes(&slice);
        // SAFETY: as above, for one number.
        drop(unsafe { launch.declares(&beginning, Access::Read).arg(1_u64).enqueue(&two) }.unwrap());
        drop((slice, beginning, y, one, two, kernel));
        setup.finish();
    });
}

#[test]
fn launch_is_one_driver_call_and_one_event() {
    let setup = Setup::new();
    let kernel = saxpy_of(&setup);
    let stream = CudaStream::new(&setup.device).unwrap();
    let (x, y) = (setup.device(4000), setup.device(4000));
    saxpy(&kernel, &stream, 0.0, &x, &y).unwrap().wait().unwrap();
    let trace = trace::start();
    let fence = saxpy(&kernel, &stream, 0.0, &x, &y).unwrap();
    let calls: Vec<_> =
        trace.calls_of_this_thread().into_iter().filter(|call| !call.name.starts_with("cuCtx")).collect();
    let handle = stream.as_raw().addr() as u64;
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!((calls[0].name, calls[0].arguments[8]), ("cuLaunchKernel", handle));
    assert_eq!((calls[1].name, calls[1].arguments[1]), ("cuEventRecord", handle));
    fence.wait().unwrap();
    drop((fence, x, y, stream, kernel));
    setup.finish();
}

#[test]
fn spin_kernel_reports_its_start_and_end() {
    let setup = Setup::new();
    let kernel = CudaModule::from_ptx(&setup.device, SPIN).unwrap().kernel("transload_spin").unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let stamps = setup.memory.allocate(MemoryKind::Mapped, 32).unwrap();
    let (first, second) = (stamps.slice(..16).unwrap(), stamps.slice(16..).unwrap());
    for out in [&first, &second] {
        let launch = kernel.launch(LaunchConfig::linear(2, 32)).arg(200_000_u64).writes(out);
        // SAFETY: the kernel takes these parameters and stores two numbers.
        drop(unsafe { launch.enqueue(&stream) }.unwrap());
    }
    let silent = kernel.launch(LaunchConfig::linear(1, 1)).arg(1000_u64).address(0);
    // SAFETY: without an address it touches no memory.
    unsafe { silent.enqueue(&stream) }.unwrap().wait().unwrap();
    let view = stamps.read().unwrap();
    let at = |index: usize| u64::from_le_bytes(view[index * 8..][..8].try_into().unwrap());
    assert!(at(0) + 200_000 <= at(1), "it spins for so long");
    assert!(at(1) <= at(2) && at(2) + 200_000 <= at(3), "one after the other on one stream");
    drop(view);
    drop((first, second, stamps, stream, kernel));
    setup.finish();
}

#[test]
fn launch_on_peer_memory_is_refused_until_enabled() {
    let Some(tests) = harness::devices(2) else { return };
    let devices: Vec<_> = tests.iter().map(|test| CudaDevice::new(test.ordinal()).unwrap()).collect();
    let memories: Vec<_> = devices.iter().map(|device| CudaMemoryManager::new(device).unwrap()).collect();
    let kernel = CudaModule::from_ptx(&devices[0], SAXPY).unwrap().kernel("transload_saxpy").unwrap();
    let streams: Vec<_> = devices.iter().map(|device| CudaStream::new(device).unwrap()).collect();
    let own: Vec<_> = (0..2).map(|_| memories[0].allocate(MemoryKind::Device, 400).unwrap()).collect();
    let error = saxpy(&kernel, &streams[1], 1.0, &own[0], &own[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("cannot be launched on a stream of"), "{error}");

    let theirs = memories[1].allocate(MemoryKind::Device, 400).unwrap();
    let host = memories[1].allocate(MemoryKind::Pinned, 400).unwrap();
    host.write().unwrap().copy_from_slice(&bytes(&[5.0; 100]));
    drop(streams[1].copy_from_host_async(&host, &theirs));
    host.write().unwrap().copy_from_slice(&bytes(&[1.0; 100]));
    drop(streams[0].copy_from_host_async(&host, &own[1]));
    if devices[0].driver().can_access_peer(devices[1].driver()).unwrap() {
        // Another test of this process may have enabled it on a real machine already.
        if tests[0].is_simulated() {
            let error = saxpy(&kernel, &streams[0], 1.0, &theirs, &own[1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("memory of peers with access enabled"), "{error}");
        }
        devices[0].context().unwrap().enable_peer(devices[1].context().unwrap()).unwrap();
        memories[1].allow_peer(&devices[0]).unwrap();
        drop(saxpy(&kernel, &streams[0], 2.0, &theirs, &own[1]).unwrap());
        drop(streams[0].copy_to_host_async(&own[1], &host));
        assert!(*host.read().unwrap() == bytes(&[11.0; 100])[..], "after the upload on the other device");
    } else {
        println!("skipped: the two devices are no peers");
    }
    drop((own, theirs, host, streams, kernel));
    memories.iter().for_each(|memory| memory.drain().unwrap());
    drop((memories, devices));
    for test in tests {
        test.assert_no_live_objects();
        test.assert_no_races();
    }
}

#[test]
fn arguments_are_passed_by_address_with_their_size() {
    let mut arguments = arguments::Arguments::default();
    arguments.push(7_u8);
    arguments.push(0x1234_u16);
    arguments.push(-3_i32);
    arguments.push(1.5_f32);
    arguments.push(u64::MAX - 1);
    arguments.push(-0.25_f64);
    assert_eq!(arguments.sizes(), [1, 2, 4, 4, 8, 8]);
    let at = arguments.pointers();
    // SAFETY: each address points to a word of `arguments` that starts with a value of the type.
    unsafe {
        assert_eq!(*at[0].cast::<u8>(), 7);
        assert_eq!(*at[1].cast::<u16>(), 0x1234);
        assert_eq!(*at[2].cast::<i32>(), -3);
        assert_eq!(*at[3].cast::<f32>(), 1.5);
        assert_eq!(*at[4].cast::<u64>(), u64::MAX - 1);
        assert_eq!(*at[5].cast::<f64>(), -0.25);
    }
}

#[test]
fn config_has_a_thread_per_element_up_to_the_grid_limit() {
    let blocks = |elements| LaunchConfig::for_elements(elements, 256).grid.0;
    assert_eq!([1, 256, 257, u64::MAX].map(blocks), [1, 1, 2, i32::MAX.cast_unsigned()]);
}
