//! Exported tensors of host memory, and invalid exports.

use std::{any::Any, ptr::NonNull, slice, sync::Arc};

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, Reclaimer, Storage};
use transload_dlpack::{DLDataType, DLDevice, DLDeviceType, Export, Flags};

use crate::producer::delete;

fn host(bytes: usize) -> RawBuffer {
    CpuBackend::new().unwrap().allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap()
}

#[test]
fn export_describes_the_buffer() {
    let buffer = host(24);
    buffer
        .write()
        .unwrap()
        .copy_from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_ne_bytes).concat());
    let raw = Export::of::<f32>(&buffer).shape(&[2, 3]).versioned().unwrap().into_raw();
    // SAFETY: a valid tensor that the test owns, of six floats.
    unsafe {
        let tensor = &(*raw).dl_tensor;
        assert_eq!(((*raw).version.major, (*raw).flags), (1, Flags::empty()));
        assert_eq!((tensor.device, tensor.dtype, tensor.byte_offset), (DLDevice::CPU, DLDataType::F32, 0));
        assert_eq!(slice::from_raw_parts(tensor.shape, 2), [2, 3]);
        assert_eq!(slice::from_raw_parts(tensor.strides, 2), [3, 1]);
        let floats = slice::from_raw_parts_mut(tensor.data.cast::<f32>(), 6);
        assert_eq!(floats, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        floats[5] = 60.0;
    }
    delete(raw);
    assert_eq!(buffer.read().unwrap()[20..], 60_f32.to_ne_bytes());
}

/// Memory of the host that a driver pinned.
struct PinnedBy(Option<DeviceId>, Box<[u8]>);

// SAFETY: the bytes are owned and stay where they are; only the buffer uses them.
unsafe impl Storage for PinnedBy {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pinned)
    }
    fn len(&self) -> usize {
        self.1.len()
    }
    fn host_address(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.1.as_ptr().cast_mut())
    }
    fn maker(&self) -> Option<DeviceId> {
        self.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Consumers of CUDA's type would use it in kernels.
#[test]
fn memory_that_another_family_pinned_is_the_hosts() {
    let cuda = DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 0 };
    for (maker, own) in [(Some(DeviceId::Wgpu(0)), DLDevice::CPU), (None, cuda)] {
        let storage = PinnedBy(maker, vec![7; 8].into_boxed_slice());
        let buffer = RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()));
        let raw = Export::of::<u8>(&buffer).versioned().unwrap().into_raw();
        // SAFETY: a valid tensor that the test owns.
        assert_eq!(unsafe { (*raw).dl_tensor.device }, own);
        delete(raw);
        let asked = Export::of::<u8>(&buffer).on_device(cuda).versioned();
        assert_eq!(asked.err().map(|error| error.kind()), maker.map(|_| ErrorKind::Unsupported));
    }
}

#[test]
fn export_keeps_shape_strides_and_flags() {
    let buffer = host(96);
    let tensor = |export: Export<'_>| {
        let raw = export.versioned().unwrap().into_raw();
        // SAFETY: a valid tensor with as many numbers as dimensions.
        let told = unsafe {
            let tensor = &(*raw).dl_tensor;
            let rank = tensor.ndim as usize;
            let numbers = |from: *mut i64| (0..rank).map(|n| *from.add(n)).collect::<Vec<_>>();
            (numbers(tensor.shape), numbers(tensor.strides), (*raw).flags, tensor.data.addr())
        };
        delete(raw);
        told
    };
    let start = buffer.host_address().unwrap().as_ptr().addr();
    assert_eq!(tensor(Export::of::<f64>(&buffer)), (vec![12], vec![1], Flags::empty(), start));
    assert_eq!(tensor(Export::of::<f64>(&buffer).shape(&[])), (vec![], vec![], Flags::empty(), start));
    let transposed = Export::of::<u8>(&buffer).shape(&[4, 2]).strides(&[1, 4]).read_only();
    assert_eq!(tensor(transposed), (vec![4, 2], vec![1, 4], Flags::READ_ONLY, start));
    let empty = Export::of::<f32>(&buffer).shape(&[3, 0]).copied();
    assert_eq!(tensor(empty), (vec![3, 0], vec![0, 1], Flags::IS_COPIED, 0));
    let slice = buffer.slice(16..48).unwrap();
    assert_eq!(tensor(Export::of::<i32>(&slice)), (vec![8], vec![1], Flags::empty(), start + 16));
    let lanes = DLDataType::new(DLDataType::F32.code, 32, 4);
    assert_eq!(tensor(Export::new(&buffer, lanes)), (vec![6], vec![1], Flags::empty(), start));
}

#[test]
fn invalid_export_is_refused_and_lends_nothing() {
    let buffer = host(64);
    let misaligned = buffer.slice(2..34).unwrap();
    let device = |device_type, device_id| DLDevice { device_type, device_id };
    let floats = || Export::of::<f32>(&buffer);
    let cases: [(&str, Export<'_>, ErrorKind); 13] = [
        ("too many elements", floats().shape(&[17]), ErrorKind::OutOfRange),
        ("strides that leave it", floats().shape(&[2, 2]).strides(&[16, 1]), ErrorKind::OutOfRange),
        ("negative shape", floats().shape(&[-1]), ErrorKind::InvalidArgument),
        ("negative stride", floats().shape(&[4]).strides(&[-1]), ErrorKind::InvalidArgument),
        ("strides of another rank", floats().shape(&[4]).strides(&[1, 1]), ErrorKind::InvalidArgument),
        ("overflowing shape", floats().shape(&[i64::MAX, i64::MAX]), ErrorKind::InvalidArgument),
        ("overflowing strides", floats().shape(&[9, 9]).strides(&[i64::MAX; 2]), ErrorKind::OutOfRange),
        (
            "no bits",
            Export::new(&buffer, DLDataType::new(DLDataType::F32.code, 0, 1)),
            ErrorKind::InvalidArgument,
        ),
        (
            "no lanes",
            Export::new(&buffer, DLDataType::new(DLDataType::F32.code, 8, 0)),
            ErrorKind::InvalidArgument,
        ),
        ("misaligned", Export::of::<f32>(&misaligned), ErrorKind::InvalidArgument),
        ("as CUDA's", floats().on_device(DLDevice::cuda(0)), ErrorKind::Unsupported),
        ("as pinned", floats().on_device(device(DLDeviceType::CUDAHOST, 0)), ErrorKind::Unsupported),
        ("as Metal's", floats().on_device(DLDevice::metal(0)), ErrorKind::Unsupported),
    ];
    for (what, export, kind) in cases {
        let error = export.versioned().expect_err(what);
        assert_eq!(error.kind(), kind, "{what}: {error}");
        buffer.try_write().expect(what).fill(1);
    }
}

#[test]
fn lent_buffer_refuses_conflicting_use() {
    let buffer = host(64);
    let (low, high) = (buffer.slice(..32).unwrap(), buffer.slice(32..).unwrap());
    let kind = |result: Result<(), transload_core::Error>| result.unwrap_err().kind();
    let written = Export::of::<u8>(&low).unversioned().unwrap();
    for open in [low.try_read().map(drop), low.read().map(drop), buffer.try_write().map(drop)] {
        let error = open.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("in use by other code, for writing"), "{error}");
    }
    high.write().unwrap().fill(1);
    assert_eq!(kind(Export::of::<u8>(&buffer).versioned().map(drop)), ErrorKind::Busy);
    drop(written);

    let read = [(); 2].map(|()| Export::of::<u8>(&low).read_only().versioned().unwrap());
    drop(low.try_read().unwrap());
    assert_eq!(kind(low.try_write().map(drop)), ErrorKind::Busy);
    drop(read);
    low.try_write().unwrap().fill(2);

    let view = low.read().unwrap();
    assert_eq!(kind(Export::of::<u8>(&low).versioned().map(drop)), ErrorKind::Busy);
    drop(Export::of::<u8>(&low).read_only().versioned().unwrap());
    drop(view);
}

#[test]
fn read_only_buffer_exports_read_only_versioned_form() {
    let backend = CpuBackend::new().unwrap();
    let buffer = backend.wrap_readonly(vec![1_u8, 2, 3]);
    let raw = Export::of::<u8>(&buffer).versioned().unwrap().into_raw();
    // SAFETY: a valid tensor that the test owns.
    assert_eq!(unsafe { (*raw).flags }, Flags::READ_ONLY);
    delete(raw);
    let other = host(8);
    for refused in [Export::of::<u8>(&buffer), Export::of::<u8>(&other).read_only()] {
        assert_eq!(refused.unversioned().unwrap_err().kind(), ErrorKind::Unsupported);
    }
    drop(buffer);
    // Owners are dropped on another thread.
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty());
}

#[test]
fn shape_span_is_checked_without_overflow() {
    let export = |bytes, dtype, shape: &[i64], strides: &[i64]| {
        let exported = Export::new(&host(bytes), dtype).shape(shape).strides(strides).versioned();
        exported.map(drop).map_err(|error| error.kind())
    };
    let f32s = |bytes, shape: &[i64], strides: &[i64]| export(bytes, DLDataType::F32, shape, strides);
    for (shape, strides, bytes) in [
        (&[2, 3][..], &[3, 1][..], 24),
        (&[2, 3], &[1, 2], 24),
        (&[2, 3], &[8, 1], 44),
        (&[5, 1], &[0, -9], 4),
        (&[], &[], 4),
    ] {
        assert_eq!(f32s(bytes, shape, strides), Ok(()), "{shape:?}");
        assert_eq!(f32s(bytes - 1, shape, strides), Err(ErrorKind::OutOfRange), "{shape:?}");
    }
    assert_eq!(f32s(1, &[7, 0], &[-1, i64::MIN]), Ok(()));
    assert_eq!(export(2, DLDataType::F4E2M1FN, &[3], &[1]), Ok(()));
    assert_eq!(export(1, DLDataType::F4E2M1FN, &[3], &[1]), Err(ErrorKind::OutOfRange));
    for (shape, strides) in [(&[2][..], &[-1][..]), (&[-2], &[1]), (&[2, 2], &[1])] {
        assert_eq!(f32s(64, shape, strides), Err(ErrorKind::InvalidArgument), "{shape:?} {strides:?}");
    }
    for (shape, strides) in [([i64::MAX, i64::MAX], [1, 1]), ([2, 2], [i64::MAX, i64::MAX])] {
        assert_eq!(f32s(64, &shape, &strides), Err(ErrorKind::OutOfRange), "{shape:?} {strides:?}");
    }
}
