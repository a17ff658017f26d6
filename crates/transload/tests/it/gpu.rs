//! One CUDA device by type, and arrays in its memory.

use transload::{
    Buffer, DeviceId, ErrorKind, HostBuffer, MemoryKind, Runtime, StreamPriority,
    backend::Backend as _,
    cuda::{AsStream, Operation, Pattern},
};
use transload_cuda_sim::harness::{self, EndCheck};

/// A runtime over one device; asserts in the end that nothing is left.
fn with_gpu(body: impl FnOnce(&Runtime, &transload::cuda::CudaGpu)) {
    let test: EndCheck = harness::device().end_check();
    let config = transload::cuda::CudaBackendConfig::default().with_devices([test.ordinal()]);
    let rt = crate::uncalibrated::builder().cuda(config).discover().unwrap();
    let gpu = rt.cuda(test.ordinal()).unwrap();
    body(&rt, &gpu);
    rt.drain().unwrap();
    assert!(rt.resources().backends.iter().all(|(_, counts)| counts.is_empty()), "{}", rt.resources());
    drop((gpu, rt));
    test.assert_no_live_objects();
}

#[test]
fn first_page_works_as_it_stands() {
    with_gpu(|rt, gpu| {
        let weights = rt.host((0..1 << 20).map(|n| n as f32).collect()).unwrap();
        let there = gpu.alloc::<f32>(1 << 20).unwrap();
        let report = rt.copy(&weights, &there).wait().unwrap();
        assert_eq!((report.bytes, report.path.dst.device), (4 << 20, gpu.id()));
        let tail = there.slice(1_000_000..).unwrap();
        let back = pollster::block_on(async { rt.download(&tail).await }).unwrap();
        assert!(back.iter().copied().eq((1_000_000..1 << 20).map(|n| n as f32)));
        let vec = rt.download_into(&there, vec![0.0; 1 << 20]).wait().unwrap();
        assert!(vec == *weights.read().unwrap());
        let vec = pollster::block_on(rt.download_into(&there, vec).into_future()).unwrap();
        assert!(vec == *weights.read().unwrap());
        let pinned = HostBuffer::from_array(gpu.pinned(1 << 20).unwrap()).unwrap();
        let address = pinned.as_ptr();
        let pinned = rt.download_into(&there, pinned).wait().unwrap();
        assert!(*pinned == *vec && pinned.as_ptr() == address);
        assert_eq!(pinned.into_array().kind(), MemoryKind::Pinned);
    });
}

#[test]
fn device_arrays_are_filled_and_copied_by_a_queue() {
    with_gpu(|_, gpu| {
        let array = gpu.zeros::<u16>(10_000).unwrap();
        let mut back = vec![1; 10_000];
        array.copy_to_host(&mut back).unwrap();
        assert_eq!(back, [0; 10_000]);
        array.slice(5..).unwrap().fill(0x1234).unwrap();
        array.slice(..3).unwrap().copy_from_host(&[1, 2, 3]).unwrap();
        array.copy_to_host(&mut back).unwrap();
        assert_eq!(back[..7], [1, 2, 3, 0, 0, 0x1234, 0x1234]);
        assert_eq!(array.read().unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn device_arrays_without_elements_are_made_by_every_way() {
    with_gpu(|rt, gpu| {
        let made = [gpu.alloc::<f32>(0), gpu.zeros(0), gpu.pinned(0), gpu.upload(&[])];
        for array in made.map(Result::unwrap) {
            assert!(array.is_empty() && rt.download(&array).wait().unwrap().is_empty());
            let other = if array.device().is_cpu() { gpu.id() } else { DeviceId::Cpu };
            let shared = rt.share(&array, other).unwrap();
            assert_eq!((shared.device(), shared.len()), (other, 0));
            assert_eq!(rt.share(&array, DeviceId::Cuda(4000)).unwrap_err().kind(), ErrorKind::UnknownDevice);
        }
    });
}

/// Work of a future that was dropped is done nevertheless, and part of what a drain waits for.
#[test]
fn drain_waits_for_calls_of_dropped_futures() {
    use std::task::{Context, Waker};
    with_gpu(|rt, gpu| {
        let is_in_flight = || {
            let array = rt.host(vec![1_u8; 8 << 20]).unwrap();
            let mut sharing = Box::pin(rt.share_async(&array, gpu.id()));
            let is_pending = sharing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
            drop((sharing, array));
            rt.drain().unwrap();
            assert!(rt.resources().is_empty(), "{}", rt.resources());
            is_pending
        };
        // The call may end before its future is polled.
        let in_flight = (0..200).filter(|_| is_in_flight()).take(5).count();
        assert_eq!(in_flight, 5);
    });
}

#[test]
fn zeros_and_uploads_go_to_any_device() {
    with_gpu(|rt, gpu| {
        for (device, kind) in [(DeviceId::Cpu, MemoryKind::Pageable), (gpu.id(), MemoryKind::Device)] {
            // Of one part, of staging in several chunks, and of 0.
            for len in [0, 1, 5000, 3 << 20] {
                let mut source: Vec<[u32; 3]> = (0..len as u32).map(|n| [n, !n, 7]).collect();
                let there = rt.upload(device, &source).unwrap();
                let expected = source.clone();
                // Nothing reads the slice any more.
                source.fill([0; 3]);
                assert_eq!((there.device(), there.kind()), (device, kind));
                assert!(*rt.download(&there).wait().unwrap() == expected[..], "{len} to {device}");
                drop(there);
                let zeros = rt.zeros_on::<[u32; 3]>(device, len).unwrap();
                assert_eq!((zeros.device(), zeros.kind(), zeros.len()), (device, kind, len));
                assert!(*rt.download(&zeros).wait().unwrap() == vec![[0; 3]; len], "{len} on {device}");
            }
        }
        for refused in [rt.upload(DeviceId::Cuda(4000), &[1_u8]), rt.zeros_on(DeviceId::Wgpu(9), 1)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::UnknownDevice);
        }
        assert_eq!(rt.upload(gpu.id(), &[()]).map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn array_works_without_its_runtime() {
    let test = harness::device().end_check();
    let config = transload::cuda::CudaBackendConfig::default().with_devices([test.ordinal()]);
    let rt = crate::uncalibrated::builder().cuda(config).discover().unwrap();
    let array = rt.cuda(test.ordinal()).unwrap().alloc::<u32>(1000).unwrap();
    drop(rt);
    array.fill(7).unwrap();
    let mut back = vec![0; 500];
    array.slice(500..).unwrap().copy_to_host(&mut back).unwrap();
    assert_eq!(back, [7; 500]);
    drop(array);
    test.assert_no_live_objects();
}

#[test]
fn handles_of_a_gpu_belong_to_it() {
    with_gpu(|rt, gpu| {
        assert_eq!(gpu.alloc_bytes(3).unwrap().place().device, gpu.id());
        let pinned = gpu.pinned::<f64>(8).unwrap();
        assert_eq!((pinned.device(), pinned.kind()), (DeviceId::Cpu, MemoryKind::Pinned));
        assert_eq!(*gpu.unified::<u8>(4).unwrap().read().unwrap(), [0; 4]);
        let stream = gpu.stream_with_priority(StreamPriority::High).unwrap();
        let (src, dst) = (gpu.pinned::<u8>(1000).unwrap(), gpu.alloc::<u8>(1000).unwrap());
        src.fill(9).unwrap();
        let transfer = rt.copy(&src, &dst).on(&stream).submit();
        gpu.stream().unwrap();
        transfer.wait().unwrap();
        assert!(rt.download(&dst).wait().unwrap().iter().all(|byte| *byte == 9));
        assert_ne!(gpu.context_raw().unwrap(), 0);
        assert_eq!(gpu.backend().devices().len(), 1);
        let shared = rt.share(&pinned, DeviceId::Cpu).unwrap();
        assert_eq!(shared.raw().id(), pinned.raw().id());
    });
}

#[test]
fn uploads_graphs_and_raw_handles() {
    with_gpu(|rt, gpu| {
        let (array, stream) = (gpu.upload(&[1_u32, 2, 3]).unwrap(), gpu.stream().unwrap());
        assert_eq!(*rt.download(&array).wait().unwrap(), [1, 2, 3]);
        let back = gpu.pinned::<u32>(3).unwrap();
        let tail = array.slice(1..).unwrap();
        let operations = [Operation::fill(&tail, Pattern::U32(9)), Operation::copy(&array, &back)];
        gpu.graph(&operations).unwrap().launch(&stream).unwrap();
        assert_eq!(*back.read().unwrap(), [1, 9, 9]);

        assert_eq!(tail.device_address().unwrap(), array.device_address().unwrap() + 4);
        let host = rt.zeros::<u8>(1).unwrap();
        assert_eq!(host.device_address().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(stream.handle(), stream.driver().as_raw() as usize);
    });
}

#[test]
fn gpu_that_is_not_there_is_explained() {
    with_gpu(|rt, _| {
        let error = rt.cuda(4000).unwrap_err();
        assert_eq!(error.to_string(), rt.explain(DeviceId::Cuda(4000)).to_string());
        assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    });
    let without = crate::uncalibrated::builder().without("cuda").discover().unwrap();
    let error = without.cuda(0).unwrap_err();
    assert!(error.to_string().contains("RuntimeBuilder::without"), "{error}");
}
