//! Guarantees of pinned, write-combined and unified resources.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{
    CudaFeature, CudaResource, HostPages, MemoryResource, NumaBinding, PinnedResource, UnifiedSupport,
    UploadBuffer,
};

use super::manager;

#[test]
fn pinned_memory_of_any_pages_is_usable_and_released() {
    let (device, memory) = manager();
    let memory = Arc::new(memory);
    for pages in [HostPages::Auto, HostPages::Driver, HostPages::Ordinary, HostPages::Huge] {
        for numa in
            [NumaBinding::DeviceNode, NumaBinding::Node(0), NumaBinding::Node(9999), NumaBinding::Anywhere]
        {
            let resource = PinnedResource::new(&memory).with_pages(pages).with_numa(numa);
            for bytes in [1, 4097, (5 << 20) + 3] {
                let segment = match resource.allocate_segment(bytes) {
                    Err(error)
                        if error.kind() == ErrorKind::Unsupported && cfg!(not(target_os = "linux")) =>
                    {
                        continue;
                    }
                    other => other.unwrap(),
                };
                assert_eq!((segment.len(), segment.place()), (bytes, resource.place()));
                assert_eq!(
                    memory.resource_counts().bytes,
                    bytes as u64,
                    "no more is counted than was asked for"
                );
                segment.write().unwrap().fill(5);
                assert!(segment.read().unwrap().iter().all(|byte| *byte == 5));
                drop(segment);
                resource.trim().unwrap();
                assert!(memory.resource_counts().is_empty());
            }
            assert_eq!(resource.allocate_segment(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
            assert_eq!(resource.device(), None);
        }
    }
    drop(memory);
    device.assert_no_live_objects();
}

#[cfg(target_os = "linux")]
#[test]
fn own_pages_are_pinned_for_the_driver() {
    let (_device, memory) = manager();
    let memory = Arc::new(memory);
    let resource = PinnedResource::new(&memory).with_pages(HostPages::Huge);
    let segment = resource.allocate_segment(5 << 20).unwrap();
    let address = segment.host_address().unwrap().as_ptr().addr();
    assert!(address.is_multiple_of(2 << 20), "huge pages need their alignment");
    let _bound = memory.device().context().unwrap().enter().unwrap();
    let mut kind = 0_u32;
    for at in [address, address + (5 << 20) - 1] {
        // SAFETY: the attribute 2 (memory type) is an unsigned integer; the address is only looked up.
        let code =
            unsafe { transload_cuda_sys::ffi::cuPointerGetAttribute((&raw mut kind).cast(), 2, at as u64) };
        transload_cuda_sys::check("cuPointerGetAttribute", code).unwrap();
        assert_eq!(kind, 1, "host memory that the driver knows");
    }
}

#[test]
fn a_pebibyte_of_any_pages_is_out_of_memory_with_its_numbers() {
    const PEBIBYTE: usize = 1 << 50;
    let (_device, memory) = manager();
    let memory = Arc::new(memory);
    for pages in [HostPages::Auto, HostPages::Driver, HostPages::Ordinary, HostPages::Huge] {
        let resource = PinnedResource::new(&memory).with_pages(pages);
        match resource.allocate_segment(PEBIBYTE) {
            Err(error) if error.kind() == ErrorKind::Unsupported && cfg!(not(target_os = "linux")) => {}
            other => {
                let error = other.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{pages:?}: {error}");
                assert_eq!(error.memory_shortage().unwrap().requested, PEBIBYTE as u64);
            }
        }
    }
    assert!(memory.resource_counts().is_empty());
}

#[test]
fn write_combined_memory_is_written_by_host_and_no_destination() {
    let (device, memory) = manager();
    let memory = Arc::new(memory);
    let resource = CudaResource::write_combined(&memory);
    let upload = UploadBuffer::new(resource.allocate_segment(1000).unwrap()).unwrap();
    upload.write(0, &[1; 1000]).unwrap();
    upload.write(990, &[2; 10]).unwrap();
    upload.write(1000, &[]).unwrap();
    for (offset, bytes) in [(991, 10), (1001, 0), (usize::MAX, 2)] {
        let error = upload.write(offset, &vec![0; bytes]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{offset}");
    }
    let source = upload.source();
    assert!(!source.is_writable());
    assert_eq!(source.write().unwrap_err().kind(), ErrorKind::InvalidArgument);
    {
        let view = source.read().unwrap();
        assert_eq!((view[0], view[999]), (1, 2));
        assert_eq!(upload.write(0, &[0]).unwrap_err().kind(), ErrorKind::Busy, "a view is open");
    }
    let ordinary = memory.allocate(MemoryKind::Pinned, 10).unwrap();
    assert_eq!(UploadBuffer::new(ordinary).unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop((upload, resource));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty());
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn oversubscribed_memory_is_refused_unless_requested() {
    let (device, memory) = manager();
    let memory = Arc::new(memory);
    let Ok(usual) = CudaResource::new(&memory, MemoryKind::Unified) else {
        println!("skipped: the device has no managed memory");
        return;
    };
    let beyond = usize::try_from(memory.info().unwrap().total).unwrap() + (1 << 20);
    let error = usual.allocate_segment(beyond).unwrap_err();
    let shortage = error.memory_shortage().unwrap();
    assert_eq!(shortage.requested, beyond as u64);
    assert!(shortage.free.unwrap() <= shortage.total.unwrap() && shortage.total.unwrap() < beyond as u64);
    // Only reserved: none of its pages is touched.
    let asked = CudaResource::oversubscribed(&memory).unwrap();
    let segment = match asked.allocate_segment(beyond) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory && !device.is_simulated() => {
            println!("skipped: the host has no room for what the device has not: {error}");
            return;
        }
        other => other.unwrap(),
    };
    assert_eq!(segment.place().kind, MemoryKind::Unified);
    assert_eq!(
        usual.allocate_segment(1 << 20).unwrap_err().kind(),
        ErrorKind::OutOfMemory,
        "all is promised"
    );
    drop(segment);
    asked.trim().unwrap();
    assert!(usual.allocate_segment(1 << 20).is_ok());
    memory.drain().unwrap();
    drop((usual, asked));
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn device_reports_its_unified_support() {
    let (_device, memory) = manager();
    let device = memory.device();
    let has = |feature| device.supports_feature(feature).unwrap();
    let expected = match device.compute_capability().unwrap() {
        (6.., _) if has(CudaFeature::ConcurrentManagedAccess) => UnifiedSupport::Full,
        (3.., _) if has(CudaFeature::ManagedMemory) => UnifiedSupport::Basic,
        _ => UnifiedSupport::None,
    };
    assert_eq!(device.unified_support().unwrap(), expected);
    assert_eq!(
        CudaResource::new(&Arc::new(memory), MemoryKind::Unified).is_ok(),
        expected > UnifiedSupport::None
    );
}
