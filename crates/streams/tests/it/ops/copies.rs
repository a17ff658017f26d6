//! Copies of every kind of memory, size and offset, and refused copies.

use transload_core::{
    DeviceId, ErrorKind, MemoryKind, Operation, Pattern, Pitched, Place, Timing, TransferMethod,
    TransferPath, submit,
};
use transload_cuda_sim::Residency as Page;
use transload_memory::{MemoryLocation, Residency};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

#[test]
fn round_trip_keeps_bytes_for_every_kind_and_odd_size() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    for (seed, size) in [1, 3, 4095, 4096, 65_537, (1 << 20) + 13].into_iter().enumerate() {
        for near in setup.memory.kinds() {
            for far in [MemoryKind::Device, MemoryKind::Unified] {
                if !near.is_host_visible() || !setup.memory.kinds().contains(&far) {
                    continue;
                }
                let content = noise(size, seed as u64 + 1);
                let source = setup.memory.allocate(near, size).unwrap();
                source.write().unwrap().copy_from_slice(&content);
                let there = setup.memory.allocate(far, size).unwrap();
                let back = setup.memory.allocate(MemoryKind::Pinned, size).unwrap();
                let up = stream.copy_from_host_async(&source, &there);
                let down = stream.copy_to_host_async(&there, &back);
                up.wait().unwrap();
                down.wait().unwrap();
                assert!(*back.read().unwrap() == content[..], "{near} → {far}, {size} bytes");
            }
        }
    }
    drop(stream);
    setup.finish();
}

#[test]
fn report_names_the_method_and_the_bytes() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (source, there) = (setup.pinned(&[1; 100]), setup.device(100));
    let copied = stream.copy_from_host_async(&source, &there).wait().unwrap();
    assert_eq!((copied.method, copied.bytes), (TransferMethod::DirectCopy, 100));
    let filled = stream.memset_async(&there, Pattern::U8(7)).wait().unwrap();
    assert_eq!((filled.method, filled.bytes), (TransferMethod::Fill, 100));
    let text = format!("100 bytes of {}/device filled on {}", stream.device(), stream.device());
    assert!(filled.to_string().starts_with(&text), "{filled}");
    let mut reports = vec![copied, filled];
    if setup.memory.kinds().contains(&MemoryKind::Unified) {
        let unified = setup.memory.allocate(MemoryKind::Unified, 100).unwrap();
        let moved = stream.prefetch_to_host_async(&unified).wait().unwrap();
        let to = Place::new(DeviceId::Cpu, MemoryKind::Unified);
        assert_eq!(
            (moved.method, moved.path),
            (TransferMethod::UnifiedMemory, TransferPath::new(unified.place(), to))
        );
        reports.push(moved);
    }
    for report in reports {
        assert_eq!(report.simulated, setup.test.is_simulated(), "{report}");
        assert_eq!(report.to_string().contains("simulated"), setup.test.is_simulated(), "{report}");
    }
    drop((source, there, stream));
    setup.finish();
}

#[test]
fn copy_of_slices_touches_only_their_range() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(1000, 3);
    let (source, there, back) = (setup.pinned(&content), setup.device(1000), setup.pinned(&[0xEE; 1000]));
    stream.copy_from_host_async(&source, &there).wait().unwrap();
    let (from, to) = (there.slice(137..537).unwrap(), back.slice(11..411).unwrap());
    stream.copy_to_host_async(&from, &to).wait().unwrap();
    let seen = back.read().unwrap();
    assert_eq!(seen[11..411], content[137..537]);
    assert!(seen[..11].iter().chain(&seen[411..]).all(|byte| *byte == 0xEE));
}

#[test]
fn device_to_device_batches_and_rows_arrive() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(4096, 5);
    let (source, one, two) = (setup.pinned(&content), setup.device(4096), setup.device(4096));
    let back = setup.pinned(&[0; 4096]);
    stream.copy_from_host_async(&source, &one).wait().unwrap();
    // Quarters in reverse order, as one batch.
    let quarter =
        |buffer: &transload_core::RawBuffer, n: usize| buffer.slice(n * 1024..(n + 1) * 1024).unwrap();
    let pairs: Vec<_> = (0..4).map(|n| (quarter(&one, n), quarter(&two, 3 - n))).collect();
    submit(&stream, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    stream.copy_to_host_async(&two, &back).wait().unwrap();
    for n in 0..4 {
        assert_eq!(back.read().unwrap()[n * 1024..(n + 1) * 1024], content[(3 - n) * 1024..(4 - n) * 1024]);
    }
    // 16 rows of 100 bytes out of rows of 256 into rows of 128.
    let rows = Pitched::new(100, 16, 256, 128);
    submit(&stream, &Operation::CopyPitched { src: &one, dst: &back, rows }, Timing::Off)
        .unwrap()
        .wait()
        .unwrap();
    for row in 0..16 {
        assert_eq!(back.read().unwrap()[row * 128..row * 128 + 100], content[row * 256..row * 256 + 100]);
    }
}

#[test]
fn patterns_of_every_width_fill_and_leave_the_rest() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (there, back) = (setup.device(64), setup.pinned(&[0; 64]));
    stream.memset_async(&there, Pattern::U8(0x11)).wait().unwrap();
    stream.memset_async(&there.slice(8..16).unwrap(), Pattern::U16(0x2233)).wait().unwrap();
    stream.memset_async(&there.slice(32..40).unwrap(), Pattern::U32(0x4455_6677)).wait().unwrap();
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    let mut expected = [0x11_u8; 64];
    expected[8..16].copy_from_slice(&0x2233_u16.to_ne_bytes().repeat(4));
    expected[32..40].copy_from_slice(&0x4455_6677_u32.to_ne_bytes().repeat(2));
    assert_eq!(*back.read().unwrap(), expected);
    let odd = there.slice(..7).unwrap();
    let refused = stream.memset_async(&odd, Pattern::U32(1));
    assert_eq!(refused.refusal().unwrap().kind(), ErrorKind::InvalidArgument);
    assert_eq!(stream.memset_async(&back, Pattern::U8(1)).wait().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn invalid_copies_are_refused_and_write_nothing() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&[7; 100]), setup.device(100));
    let (low, high) = (there.slice(..60).unwrap(), there.slice(40..).unwrap());
    assert_eq!(
        stream.copy_device_to_device_async(&low, &high).wait().unwrap_err().kind(),
        ErrorKind::Overlap
    );
    let short = there.slice(..99).unwrap();
    assert_eq!(
        stream.copy_from_host_async(&host, &short).wait().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let other = setup.pinned(&[1; 100]);
    assert_eq!(stream.copy_from_host_async(&host, &other).wait().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(*other.read().unwrap(), [1; 100]);
    assert!(host.write().is_ok(), "a refused copy leaves no claim");
}

#[test]
fn prefetched_unified_memory_keeps_its_bytes() {
    let setup = Setup::new();
    if !setup.memory.kinds().contains(&MemoryKind::Unified) {
        println!("skipped: the device has no unified memory");
        return;
    }
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(300_000, 9);
    let unified = setup.memory.allocate(MemoryKind::Unified, content.len()).unwrap();
    unified.write().unwrap().copy_from_slice(&content);
    let sent_to = |expected| {
        assert_eq!(Residency::of(&unified).unwrap().last_prefetch, Some(expected));
        let page = setup.test.sim().and_then(|sim| sim.residency(unified.device_address().unwrap()));
        let on = match expected {
            MemoryLocation::Device(ordinal) => Page::Device(ordinal),
            _ => Page::Host,
        };
        assert!(page.is_none_or(|page| page == on), "{page:?}, not {on:?}");
    };
    let there = MemoryLocation::Device(setup.test.ordinal());
    for ordinal in [None, Some(setup.test.ordinal())] {
        stream.prefetch_to_device_async(&unified, ordinal).wait().unwrap();
        sent_to(there);
        stream.prefetch_to_host_async(&unified).wait().unwrap();
        sent_to(MemoryLocation::Host);
    }
    assert!(*unified.read().unwrap() == content[..]);
    let device = setup.device(10);
    assert_eq!(stream.prefetch_to_host_async(&device).wait().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn large_copy_records_an_event_and_a_small_one_does_not() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    for (bytes, calls_wanted) in [(100_000, 2), (5000, 1)] {
        let (host, there) = (setup.pinned(&vec![1; bytes]), setup.device(bytes));
        stream.copy_from_host_async(&host, &there).wait().unwrap();
        let trace = transload_cuda_sys::trace::start();
        let transfer = stream.copy_from_host_async(&host, &there);
        let calls: Vec<_> =
            trace.calls_of_this_thread().into_iter().filter(|call| !call.name.starts_with("cuCtx")).collect();
        drop(trace);
        assert_eq!(calls.len(), calls_wanted, "{calls:?}");
        assert_eq!(calls[0].name, "cuMemcpyHtoDAsync_v2");
        assert_eq!(calls[0].arguments[..1], [there.device_address().unwrap()]);
        assert_eq!(calls[0].arguments[2], bytes as u64);
        if let Some(event) = calls.get(1) {
            assert_eq!((event.name, event.arguments[1]), ("cuEventRecord", calls[0].arguments[3]));
        }
        transfer.wait().unwrap();
    }
}

#[test]
fn a_raw_copy_moves_bytes_between_addresses() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(2000, 11);
    let (host, there, back) = (setup.pinned(&content), setup.device(2000), setup.pinned(&[0; 2000]));
    let address = |buffer: &transload_core::RawBuffer| {
        buffer
            .device_address()
            .unwrap_or_else(|| buffer.host_address().unwrap().as_ptr().expose_provenance() as u64)
    };
    // SAFETY: all three are valid for 2000 bytes, accessible to the device, and unused until the synchronisation.
    unsafe {
        stream.copy_raw_async(address(&there), address(&host), 2000).unwrap();
        stream.copy_raw_async(address(&back), address(&there), 2000).unwrap();
        assert_eq!(stream.copy_raw_async(0, 0, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    stream.synchronize().unwrap();
    assert!(*back.read().unwrap() == content[..]);
}
