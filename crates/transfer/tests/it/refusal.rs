//! Invalid requests are refused before anything moves.

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer, Transfer, TransferMethod};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, is_at_rest,
    mock::{bytes, read_only},
    pair, with,
};

/// Checks that the transfer is refused with this kind and text, moves nothing, and leaves the manager usable.
fn refuses(
    kind: ErrorKind,
    words: &[&str],
    request: impl Fn(&CrossBackendTransferManager, &RawBuffer, &RawBuffer) -> Transfer,
) {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 100);
    let transfer = request(&manager, &src, &dst);
    assert!(transfer.refusal().is_some() && transfer.fence().is_none() && transfer.is_complete());
    let error = transfer.wait().unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
    }
    assert_eq!(manager.refused(), 1);
    assert!(manager.get_transfer_stats().is_empty());
    manager.drain().unwrap();
    assert_eq!((backend.performed(), backend.leased().len()), (0, 0));
    assert!(bytes(&dst).iter().all(|byte| *byte == 0));
    assert!(bytes(&src).iter().all(|byte| *byte == 1));

    manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(bytes(&dst), bytes(&src));
    drop((src, dst));
    assert!(is_at_rest(&manager));
}

#[test]
fn source_range_out_of_bounds_names_maximum() {
    refuses(ErrorKind::OutOfRange, &["source of 100 bytes", "at most 10 are valid"], |manager, src, dst| {
        manager.transfer_buffer(src, dst, 90, 0, 11)
    });
}

#[test]
fn destination_range_out_of_bounds_names_maximum() {
    refuses(ErrorKind::OutOfRange, &["destination of 100 bytes", "at most 1 are"], |manager, src, dst| {
        manager.transfer_buffer(src, dst, 0, 99, 2)
    });
}

#[test]
fn offset_past_end_names_largest_valid() {
    for offset in [100, 101, usize::MAX] {
        refuses(ErrorKind::OutOfRange, &["at most 99 is valid"], |manager, src, dst| {
            manager.transfer_buffer(src, dst, offset, 0, 1)
        });
    }
}

#[test]
fn a_range_whose_end_overflows_is_refused() {
    for (src_offset, dst_offset, size) in
        [(1, 0, usize::MAX), (0, 1, usize::MAX), (usize::MAX, 0, usize::MAX), (0, usize::MAX, 100)]
    {
        refuses(ErrorKind::OutOfRange, &["valid"], |manager, src, dst| {
            manager.transfer_buffer(src, dst, src_offset, dst_offset, size)
        });
    }
}

#[test]
fn zero_bytes_are_refused() {
    refuses(ErrorKind::InvalidArgument, &["0 bytes", "at least 1"], |manager, src, dst| {
        manager.transfer_buffer(src, dst, 0, 0, 0)
    });
}

#[test]
fn whole_buffers_of_different_lengths_are_refused() {
    refuses(ErrorKind::InvalidArgument, &["100 bytes", "99"], |manager, src, dst| {
        manager.copy(src, &dst.slice(..99).unwrap()).submit()
    });
}

#[test]
fn overlap_within_one_allocation_is_refused() {
    refuses(ErrorKind::Overlap, &["at least 60 apart"], |manager, src, _| {
        manager.transfer_buffer(src, src, 0, 40, 60)
    });
    refuses(ErrorKind::Overlap, &["the same 100 bytes"], |manager, src, _| manager.copy(src, src).submit());
    refuses(ErrorKind::Overlap, &["the same 10 bytes"], |manager, src, _| {
        manager.transfer_buffer(&src.slice(10..60).unwrap(), &src.slice(40..).unwrap(), 40, 10, 10)
    });
}

#[test]
fn read_only_destination_is_refused() {
    let dst = read_only(100);
    refuses(ErrorKind::InvalidArgument, &["read-only"], |manager, src, _| manager.copy(src, &dst).submit());
    assert!(bytes(&dst).iter().all(|byte| *byte == 0));
}

#[test]
fn unregistered_device_error_names_registered_ones() {
    let stranger = Mock { devices: vec![(DeviceId::Wgpu(3), vec![MemoryKind::Device])], ..Mock::default() };
    let (other, _) = with(stranger);
    let foreign = other.allocate(DeviceId::Wgpu(3), MemoryKind::Device, 100).unwrap();
    let words = ["wgpu:3 is not registered", "registered: cpu, mock:0"];
    refuses(ErrorKind::UnknownDevice, &words, |manager, src, _| manager.copy(src, &foreign).submit());
    refuses(ErrorKind::UnknownDevice, &words, |manager, _, dst| manager.copy(&foreign, dst).submit());
}

#[test]
fn a_range_under_an_open_host_view_is_refused_as_busy() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 100);
    let view = src.write().unwrap();
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!((error.kind(), manager.refused()), (ErrorKind::Busy, 1));
    drop(view);
    manager.copy(&src, &dst).wait().unwrap();
}

#[test]
fn queue_refusal_is_returned_unchanged() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 100);
    backend.refuse_next(ErrorKind::Unsupported);
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unsupported, "planted refusal"));
    assert_eq!(manager.refused(), 1);
}

#[test]
fn plan_is_refused_like_transfer() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 100);
    let options = TransferOptions::new();
    let plan = |bytes| manager.plan(src.place(), dst.place(), bytes, &options).map(|plan| plan.method);
    assert_eq!(plan(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(plan(u64::MAX).unwrap(), TransferMethod::DirectCopy);
    let empty = CrossBackendTransferManager::new();
    let error = empty.plan(src.place(), dst.place(), 1, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    assert!(error.to_string().contains("call register_backend"), "{error}");
    assert_eq!(empty.copy(&src, &dst).wait().unwrap_err().to_string(), error.to_string());
    assert_eq!(MOCK, dst.place().device);
}
