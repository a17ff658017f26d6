//! Imports of valid and invalid tensors: each failure has its own error and returns the tensor.

use std::ptr;

use transload_backend_cpu::CpuBuffer;
use transload_core::{DeviceId, ErrorKind, MemoryKind, Place};
use transload_dlpack::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPackVersion, Flags, Importer,
    ManagedTensor,
};

use crate::producer::Said;

fn take(raw: *mut DLManagedTensorVersioned) -> ManagedTensor<DLManagedTensorVersioned> {
    // SAFETY: made by the test, which keeps the data to its end and uses it by the buffer only.
    unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap()
}

#[test]
fn a_tensors_memory_is_read_and_written_in_place() {
    let mut data = vec![0.0_f32; 6];
    let start = data.as_mut_ptr();
    let importer = Importer::new();
    let (raw, deleted) = Said::floats(start, 0).shaped(&[2, 3], Some(&[3, 1])).versioned();
    let there = importer.import_as::<f32, _>(take(raw)).unwrap();
    assert_eq!(there.buffer().place(), Place::new(DeviceId::Cpu, MemoryKind::Pageable));
    assert_eq!((there.shape(), there.strides(), there.dtype()), (&[2, 3][..], &[3, 1][..], DLDataType::F32));
    assert_eq!(there.version(), Some(DLPackVersion { major: 1, minor: 1 }));
    assert_eq!(there.buffer().host_address().unwrap().as_ptr(), start.cast());
    there.buffer().write().unwrap()[20..].copy_from_slice(&9.0_f32.to_ne_bytes());
    assert_eq!((importer.resource_counts().allocations, importer.resource_counts().bytes), (1, 24));

    // A slice keeps the tensor alive.
    let slice = there.buffer().slice(8..).unwrap();
    drop(there);
    assert_eq!(deleted.times(), 0);
    drop(slice);
    importer.drain().unwrap();
    assert_eq!(deleted.times(), 1);
    assert!(importer.resource_counts().is_empty());
    assert_eq!(data[5], 9.0);
}

#[test]
fn both_forms_import_any_dense_layout() {
    let mut data = vec![0_u8; 256];
    let start = data.as_mut_ptr();
    let importer = Importer::new();
    let said = || Said::floats(start.cast(), 4);
    let said_at = |byte_offset| Said { byte_offset, ..said() };
    let cases: [(&str, Said, usize, usize); 10] = [
        ("offset", said_at(64), 64, 16),
        ("transposed", said().shaped(&[3, 2], Some(&[1, 3])), 0, 24),
        ("no strides", said().shaped(&[3, 2], None), 0, 24),
        ("length 1, any stride", said().shaped(&[1, 4], Some(&[77, 1])), 0, 16),
        ("length 1 between, any stride", said().shaped(&[4, 1, 2], Some(&[2, 77, 1])), 0, 32),
        ("no dimension", said().shaped(&[], None), 0, 4),
        (
            "no element",
            Said { data: ptr::null_mut(), ..said().shaped(&[0, 3], Some(&[3, 1])) },
            usize::MAX,
            0,
        ),
        (
            "no element, misaligned",
            Said { data: start.wrapping_add(1).cast(), ..said().shaped(&[0], None) },
            0,
            0,
        ),
        ("no element, any stride", said().shaped(&[2, 0], Some(&[77, 9])), 0, 0),
        ("misaligned, by bytes", said_at(1), 1, 16),
    ];
    for (what, said, offset, bytes) in cases {
        let check = |buffer: &transload_core::RawBuffer| {
            assert_eq!(buffer.len(), bytes, "{what}");
            assert_eq!(buffer.read().unwrap().len(), bytes, "{what}");
            if bytes > 0 {
                assert_eq!(buffer.host_address().unwrap().as_ptr(), start.wrapping_add(offset), "{what}");
            } else {
                assert!(CpuBuffer::<f64>::from_raw(buffer.clone()).expect(what).read().unwrap().is_empty());
            }
        };
        let (raw, deleted) = said.clone().versioned();
        check(importer.import(take(raw)).expect(what).buffer());
        let (old, deleted_old) = said.unversioned();
        // SAFETY: as in `take`.
        let old = importer.import(unsafe { ManagedTensor::from_raw(old, &[]) }.unwrap()).expect(what);
        assert_eq!(old.version(), None);
        check(&old.into_buffer());
        importer.drain().unwrap();
        assert_eq!((deleted.times(), deleted_old.times()), (1, 1), "{what}");
    }
    assert!(importer.resource_counts().is_empty());
}

#[test]
fn subbyte_elements_and_lanes_count_correctly() {
    let mut data = vec![0_u8; 256];
    let importer = Importer::new();
    let mut of = |dtype, shape: &[i64], strides: Option<&[i64]>, flags| {
        let said = Said::floats(data.as_mut_ptr().cast(), 0).shaped(shape, strides);
        let (raw, _) = Said { dtype, flags, ..said }.versioned();
        importer.import(take(raw)).map(|there| there.buffer().len()).map_err(|refused| refused.error().kind())
    };
    let (four, padded) = (DLDataType::F4E2M1FN, Flags::IS_SUBBYTE_TYPE_PADDED);
    assert_eq!(of(four, &[5], None, Flags::empty()), Ok(3));
    assert_eq!(of(four, &[5], None, padded), Ok(5));
    assert_eq!(of(four, &[2, 3], Some(&[1, 2]), Flags::empty()), Err(ErrorKind::Unsupported));
    assert_eq!(
        of(four, &[1, 6], Some(&[77, 1]), Flags::empty()),
        Ok(3),
        "a dimension of length 1 has any stride"
    );
    assert_eq!(of(four, &[4, 1], Some(&[1, 77]), padded), Ok(4));
    assert_eq!(of(four, &[2, 0], Some(&[77, 9]), Flags::empty()), Ok(0));
    assert_eq!(of(DLDataType::new(DLDataType::F32.code, 32, 4), &[3], None, Flags::empty()), Ok(48));
    assert_eq!(of(DLDataType::BOOL, &[3], None, Flags::empty()), Ok(3));
}

#[test]
fn read_only_import_is_not_writable() {
    let mut data = vec![0.0_f32; 4];
    let (raw, deleted) =
        Said { flags: Flags::READ_ONLY | Flags::IS_COPIED, ..Said::floats(data.as_mut_ptr(), 4) }.versioned();
    let importer = Importer::new();
    let there = importer.import(take(raw)).unwrap();
    assert!(there.is_copied() && !there.buffer().is_writable());
    assert_eq!(there.buffer().write().unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(there.buffer().read().unwrap());
    drop(there);
    importer.drain().unwrap();
    assert_eq!(deleted.times(), 1);
}

#[test]
fn invalid_description_returns_the_tensor() {
    let mut data = vec![0.0_f32; 64];
    let floats = || Said::floats(data.as_ptr().cast_mut(), 4);
    let dtype = |bits, lanes| DLDataType::new(DLDataType::F32.code, bits, lanes);
    let on = |device_type, device_id| Said { device: DLDevice { device_type, device_id }, ..floats() };
    let invalid = ErrorKind::InvalidArgument;
    let cases = [
        ("null data", Said { data: ptr::null_mut(), ..floats() }, invalid),
        ("negative rank", Said { ndim: -1, ..floats() }, invalid),
        ("null shape", Said { shape: None, ..floats() }, invalid),
        ("negative length", floats().shaped(&[-4], Some(&[1])), invalid),
        ("too many elements", floats().shaped(&[i64::MAX, i64::MAX], None), invalid),
        ("too many bytes", floats().shaped(&[i64::MAX], None), invalid),
        ("an offset beyond all memory", Said { byte_offset: u64::MAX, ..floats() }, ErrorKind::OutOfRange),
        ("no bits", Said { dtype: dtype(0, 1), ..floats() }, invalid),
        ("no lanes", Said { dtype: dtype(32, 0), ..floats() }, invalid),
        ("gaps", floats().shaped(&[2, 3], Some(&[8, 1])), ErrorKind::Unsupported),
        ("a gap of one", floats().shaped(&[2, 3], Some(&[4, 1])), ErrorKind::Unsupported),
        ("every second", floats().shaped(&[3], Some(&[2])), ErrorKind::Unsupported),
        (
            "an end beyond all memory",
            Said { data: ptr::without_provenance_mut(usize::MAX), ..floats() },
            ErrorKind::OutOfRange,
        ),
        ("shared elements", floats().shaped(&[2, 3], Some(&[0, 1])), ErrorKind::Unsupported),
        ("backwards", floats().shaped(&[4], Some(&[-1])), ErrorKind::Unsupported),
        (
            "version 2",
            Said { version: DLPackVersion { major: 2, minor: 0 }, ..floats() },
            ErrorKind::Unsupported,
        ),
        (
            "version 0",
            Said { version: DLPackVersion { major: 0, minor: 8 }, ..floats() },
            ErrorKind::Unsupported,
        ),
        ("another host", on(DLDeviceType::CPU, 1), ErrorKind::UnknownDevice),
        ("a device without importer", on(DLDeviceType::CUDA, 0), ErrorKind::UnknownDevice),
        ("ROCm", on(DLDeviceType::ROCM, 0), ErrorKind::UnknownDevice),
        ("an unknown type", on(DLDeviceType(4711), 0), ErrorKind::UnknownDevice),
        ("a negative ordinal", on(DLDeviceType::CUDA, -1), ErrorKind::UnknownDevice),
    ];
    let importer = Importer::new();
    for (what, said, kind) in cases {
        let (raw, deleted) = said.versioned();
        let refused = importer.import(take(raw)).expect_err(what);
        assert_eq!(refused.error().kind(), kind, "{what}: {refused}");
        assert_eq!(deleted.times(), 0, "{what}: it is the caller's");
        let back = refused.into_tensor();
        assert_eq!(back.into_raw(), raw, "{what}");
        drop(importer.import(take(raw)).expect_err(what));
        assert_eq!(deleted.times(), 1, "{what}: dropped with the error");
    }
    assert!(importer.resource_counts().is_empty());
    data[0] = 1.0;
}

#[test]
fn newer_minor_version_is_imported() {
    let mut data = vec![0.0_f32; 4];
    let version = DLPackVersion { major: 1, minor: 99 };
    let (raw, _) = Said { version, ..Said::floats(data.as_mut_ptr(), 4) }.versioned();
    let importer = Importer::new();
    assert_eq!(importer.import(take(raw)).unwrap().version(), Some(version));
    importer.drain().unwrap();
}

#[test]
fn typed_import_checks_type_and_alignment() {
    let mut data = [0.0_f64; 8];
    let importer = Importer::new();
    let floats = || Said::floats(data.as_ptr().cast_mut().cast(), 4);
    let other = importer.import_as::<f64, _>(take(floats().versioned().0)).unwrap_err();
    assert_eq!(other.error().kind(), ErrorKind::InvalidArgument);
    let lanes = Said { dtype: DLDataType::new(DLDataType::F32.code, 32, 2), ..floats() };
    assert!(importer.import_as::<f32, _>(take(lanes.versioned().0)).is_err());
    let odd = Said { byte_offset: 2, ..floats() };
    let refused = importer.import_as::<f32, _>(take(odd.versioned().0)).unwrap_err();
    assert!(refused.to_string().contains("not aligned to 4 bytes"), "{refused}");
    assert!(importer.import_as::<f32, _>(take(floats().versioned().0)).is_ok());
    std::hint::black_box(&mut data);
}
