//! Raw operations: copies in all directions, fills of every width and prefetches, ordered with other work by fences.

use transload_core::{ErrorKind, MemoryKind, Pattern, RawBuffer};
use transload_cuda_sim::Residency as Page;
use transload_memory::{MemoryLocation, Residency};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

fn device_address(buffer: &RawBuffer) -> u64 {
    buffer.device_address().unwrap()
}

fn host_address(buffer: &RawBuffer) -> *mut u8 {
    buffer.host_address().unwrap().as_ptr()
}

#[test]
fn raw_copies_move_bytes_and_one_fence_covers_them() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let bytes = 100_000;
    let content = noise(bytes, 1);
    let (host, one, two, back) =
        (setup.pinned(&content), setup.device(bytes), setup.device(bytes), setup.pinned(&vec![0; bytes]));
    // SAFETY: all four are valid for as many bytes, accessible to the device, and unused until the fence completes.
    let fence = unsafe {
        stream.copy_from_host_raw_async(device_address(&one), host_address(&host), bytes).unwrap();
        stream.copy_device_to_device_raw_async(device_address(&two), device_address(&one), bytes).unwrap();
        stream.copy_to_host_raw_async(host_address(&back), device_address(&two), bytes).unwrap();
        stream.fence().unwrap()
    };
    fence.wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    drop((host, one, two, back, stream, fence));
    setup.finish();
}

#[test]
fn raw_fills_write_every_width_and_refuse_bad_arguments() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (there, back) = (setup.device(64), setup.pinned(&[0; 64]));
    let address = device_address(&there);
    // SAFETY: the ranges lie within the buffer, which outlives the work; refused ones touch nothing.
    unsafe {
        stream.memset_raw_async(address, Pattern::U8(0x11), 64).unwrap();
        stream.memset_raw_async(address + 8, Pattern::U16(0x2233), 8).unwrap();
        stream.memset_raw_async(address + 32, Pattern::U32(0x4455_6677), 8).unwrap();
        stream.memset_raw_async(address + 40, Pattern::U64(0x8899_AABB_CCDD_EEFF), 8).unwrap();
        stream.memset_raw_async(address + 48, Pattern::U128(0x1234_5678 << 90), 16).unwrap();
        let refusals = [
            stream.memset_raw_async(address, Pattern::U16(1), 3),
            stream.memset_raw_async(address + 2, Pattern::U32(1), 4),
            stream.memset_raw_async(address + 4, Pattern::U64(1), 8),
            stream.memset_raw_async(address, Pattern::U64(1), 12),
            stream.memset_raw_async(address + 8, Pattern::U128(1), 16),
            stream.memset_raw_async(address, Pattern::U128(1), 24),
            stream.memset_raw_async(address, Pattern::U128(1), 0),
            stream.memset_raw_async(address, Pattern::U8(1), 0),
            stream.copy_from_host_raw_async(address, host_address(&back), 0),
            stream.copy_to_host_raw_async(host_address(&back), address, 0),
            stream.copy_device_to_device_raw_async(address, address, 0),
            stream.prefetch_to_device_raw_async(address, 0, None),
            stream.prefetch_to_host_raw_async(address, 0),
        ];
        for (n, refusal) in refusals.into_iter().enumerate() {
            assert_eq!(refusal.unwrap_err().kind(), ErrorKind::InvalidArgument, "{n}");
        }
    }
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    let mut expected = [0x11_u8; 64];
    expected[8..16].copy_from_slice(&0x2233_u16.to_ne_bytes().repeat(4));
    expected[32..40].copy_from_slice(&0x4455_6677_u32.to_ne_bytes().repeat(2));
    expected[40..48].copy_from_slice(&0x8899_AABB_CCDD_EEFF_u64.to_ne_bytes());
    expected[48..].copy_from_slice(&(0x1234_5678_u128 << 90).to_ne_bytes());
    assert_eq!(*back.read().unwrap(), expected);
}

#[test]
fn unified_memory_prefetched_by_address_keeps_its_bytes() {
    let setup = Setup::new();
    if !setup.memory.kinds().contains(&MemoryKind::Unified) {
        println!("skipped: the device has no unified memory");
        return;
    }
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(200_000, 2);
    let unified = setup.memory.allocate(MemoryKind::Unified, content.len()).unwrap();
    if unified.host_address().is_none() {
        println!("skipped: host and device cannot use unified memory at the same time");
        return;
    }
    unified.write().unwrap().copy_from_slice(&content);
    let address = device_address(&unified);
    let there = setup.test.ordinal();
    let sent_to = |expected, page| {
        stream.synchronize().unwrap();
        assert_eq!(Residency::of(&unified).unwrap().last_prefetch, Some(expected));
        let found = setup.test.sim().and_then(|sim| sim.residency(address));
        assert!(found.is_none_or(|found| found == page), "{found:?}, not {page:?}");
    };
    for ordinal in [None, Some(there)] {
        // SAFETY: the allocation is managed and outlives the work; it is read only after the synchronisation.
        unsafe { stream.prefetch_to_device_raw_async(address, content.len(), ordinal) }.unwrap();
        sent_to(MemoryLocation::Device(there), Page::Device(there));
        // SAFETY: as above.
        unsafe { stream.prefetch_to_host_raw_async(address, content.len()) }.unwrap();
        sent_to(MemoryLocation::Host, Page::Host);
    }
    assert!(*unified.read().unwrap() == content[..]);
}
