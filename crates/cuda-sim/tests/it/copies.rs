//! Copies from and to every kind of memory.

use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{AsStream, check, ffi};

use crate::raw::{Bench, INVALID_VALUE, contents, download, fill, upload};
#[test]
fn pinned_bytes_make_the_round_trip_at_odd_sizes_and_offsets() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    for (turn, (bytes, offset)) in
        [(1, 0), (3, 1), (4095, 7), (65_537, 513), (1 << 20, 0), ((3 << 20) + 13, 1021)]
            .into_iter()
            .enumerate()
    {
        let memory = bench.memory(bytes + offset);
        let mut source = bench.pinned(bytes + offset);
        let target = bench.pinned(bytes + offset);
        let content = noise(bytes + offset, turn as u64 + 1);
        source.set(&content);
        let place = memory.address + offset as u64;
        upload(&stream, place, &source, offset, bytes).expect("up");
        download(&stream, &target, offset, place, bytes).expect("down");
        stream.synchronize().expect("healthy");
        assert_eq!(target.snapshot()[offset..], content[offset..], "{bytes} bytes at {offset}");
        assert!(
            target.snapshot()[..offset].iter().all(|byte| *byte == 0),
            "nothing before the offset is touched"
        );
    }
}

#[test]
fn host_copy_without_context_uses_that_of_its_stream() {
    const BYTES: usize = 4096;
    let bench = Bench::new(harness::device());
    let (stream, memory) = (bench.stream(), bench.memory(BYTES));
    let (mut source, target) = (bench.pinned(BYTES), bench.pinned(BYTES));
    let content = noise(BYTES, 90);
    source.set(&content);
    // Plain numbers, because pointers are not `Send`.
    let (up, down) = (source.pointer().expose_provenance(), target.pointer().expose_provenance());
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| {
            let mut current = std::ptr::null_mut();
            // SAFETY: the out pointer is valid.
            check("cuCtxGetCurrent", unsafe { ffi::cuCtxGetCurrent(&mut current) })?;
            assert!(current.is_null(), "a new thread has no context");
            let (up, down) =
                (std::ptr::with_exposed_provenance(up), std::ptr::with_exposed_provenance_mut(down));
            // SAFETY: the memory is alive, and only looked at when the stream is done.
            unsafe {
                let code = ffi::cuMemcpyHtoDAsync_v2(memory.address, up, BYTES, stream.as_raw());
                check("cuMemcpyHtoDAsync", code)?;
                let code = ffi::cuMemcpyDtoHAsync_v2(down, memory.address, BYTES, stream.as_raw());
                check("cuMemcpyDtoHAsync", code)
            }
        });
        copied.join().expect("no panic").expect("copied");
    });
    stream.synchronize().expect("healthy");
    assert_eq!(target.snapshot(), content);
}

#[test]
fn pageable_source_may_be_changed_after_the_call() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    for (turn, bytes) in [5_usize, 64 << 10, (64 << 10) + 1, (1 << 20) + 3].into_iter().enumerate() {
        let memory = bench.memory(bytes);
        let content = noise(bytes, turn as u64 + 40);
        let mut source = content.clone();
        let mut target = vec![0_u8; bytes];
        // SAFETY: both vectors have `bytes` bytes; a pageable source may be reused after the call.
        unsafe {
            check(
                "up",
                ffi::cuMemcpyHtoDAsync_v2(memory.address, source.as_ptr().cast(), bytes, stream.as_raw()),
            )
            .expect("up");
            source.fill(0xEE);
            check(
                "down",
                ffi::cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), memory.address, bytes, stream.as_raw()),
            )
            .expect("down");
        }
        assert_eq!(
            target, content,
            "a copy to pageable memory is done when the call returns ({bytes} bytes)"
        );
    }
}

#[test]
fn registered_memory_is_copied_like_pinned_memory() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let bytes = (1 << 20) + 8192;
    let content = noise(bytes, 77);
    let source = content.clone();
    let memory = bench.memory(bytes);
    let start = source.as_ptr().cast_mut().cast();
    // SAFETY: the vector outlives the registration, and the copy is waited for before it is dropped.
    unsafe {
        check("register", ffi::cuMemHostRegister_v2(start, bytes, 0)).expect("register");
        assert_eq!(ffi::cuMemHostRegister_v2(start, bytes, 0), 712, "it is registered already");
        check("up", ffi::cuMemcpyHtoDAsync_v2(memory.address, start, bytes, stream.as_raw())).expect("up");
        stream.synchronize().expect("healthy");
        assert_eq!(ffi::cuMemHostUnregister(start.cast::<u8>().add(64).cast()), 1, "not where it begins");
        check("unregister", ffi::cuMemHostUnregister(start)).expect("unregister");
        assert_eq!(ffi::cuMemHostUnregister(start), 713, "it is registered no more");
    }
    assert_eq!(contents(&bench, memory.address, bytes), content);
}

#[test]
fn copies_within_a_device_and_of_any_direction() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let bytes = 300_001;
    let (first, second) = (bench.memory(bytes), bench.memory(bytes));
    let mut source = bench.pinned(bytes);
    let target = bench.pinned(bytes);
    let content = noise(bytes, 5);
    source.set(&content);
    // SAFETY: all memory is owned and lives until the stream is done.
    unsafe {
        let up = ffi::cuMemcpyAsync(first.address, source.address() as u64, bytes, stream.as_raw());
        check("up", up).expect("up");
        let across = ffi::cuMemcpyDtoDAsync_v2(second.address, first.address, bytes, stream.as_raw());
        check("across", across).expect("across");
        let down = ffi::cuMemcpyAsync(target.address() as u64, second.address, bytes, stream.as_raw());
        check("down", down).expect("down");
    }
    stream.synchronize().expect("healthy");
    assert_eq!(target.snapshot(), content);
}

#[test]
fn a_rectangle_lands_with_its_pitch() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let (width, height, from_pitch, to_pitch) = (37_usize, 11_usize, 50_usize, 64_usize);
    let mut source = bench.pinned(from_pitch * height);
    let content = noise(from_pitch * height, 9);
    source.set(&content);
    let memory = bench.memory(to_pitch * height);
    fill(&stream, memory.address, 0xA5, memory.bytes).expect("fill");
    // SAFETY: zeros are a valid description; the enums are set to listed values below.
    let mut copy: transload_cuda_sys::cust::sys::CUDA_MEMCPY2D = unsafe {
        let mut zeroed = std::mem::MaybeUninit::zeroed();
        let start: *mut transload_cuda_sys::cust::sys::CUDA_MEMCPY2D = zeroed.as_mut_ptr();
        (*start).srcMemoryType = transload_cuda_sys::cust::sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        (*start).dstMemoryType = transload_cuda_sys::cust::sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        zeroed.assume_init()
    };
    copy.srcHost = source.pointer().cast();
    copy.srcPitch = from_pitch;
    copy.dstDevice = memory.address;
    copy.dstPitch = to_pitch;
    copy.WidthInBytes = width;
    copy.Height = height;
    // SAFETY: the rectangle lies within both allocations.
    check("2d", unsafe { ffi::cuMemcpy2DAsync_v2(&copy, stream.as_raw()) }).expect("2d");
    let landed = contents(&bench, memory.address, memory.bytes);
    for row in 0..height {
        assert_eq!(landed[row * to_pitch..][..width], content[row * from_pitch..][..width], "row {row}");
        assert!(
            landed[row * to_pitch + width..(row + 1) * to_pitch].iter().all(|byte| *byte == 0xA5),
            "row {row}"
        );
    }
}

#[test]
fn fills_repeat_their_pattern() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let _bound = bench.context.enter().expect("enter");
    let memory = bench.memory(4096);
    // SAFETY: the memory is owned and 4096 bytes long.
    unsafe {
        check("8", ffi::cuMemsetD8Async(memory.address, 0x11, 4096, stream.as_raw())).expect("8");
        check("16", ffi::cuMemsetD16Async(memory.address + 2, 0x2233, 100, stream.as_raw())).expect("16");
        check("32", ffi::cuMemsetD32Async(memory.address + 1024, 0x4455_6677, 256, stream.as_raw()))
            .expect("32");
    }
    let seen = contents(&bench, memory.address, 4096);
    assert_eq!(seen[..2], [0x11; 2]);
    assert!(seen[2..202].chunks(2).all(|pair| pair == 0x2233_u16.to_ne_bytes()));
    assert_eq!(seen[202..1024], [0x11; 822]);
    assert!(seen[1024..2048].chunks(4).all(|word| word == 0x4455_6677_u32.to_ne_bytes()));
    assert_eq!(seen[2048..], [0x11; 2048]);
    // SAFETY: as above; then a misaligned address, which is refused.
    unsafe {
        check("8", ffi::cuMemsetD8_v2(memory.address, 0x77, 5)).expect("8");
        check("32", ffi::cuMemsetD32_v2(memory.address + 8, 1, 1)).expect("32");
        assert_eq!(ffi::cuMemsetD32_v2(memory.address + 1, 1, 1), INVALID_VALUE);
    }
    let seen = contents(&bench, memory.address, 12);
    assert_eq!(seen, [0x77, 0x77, 0x77, 0x77, 0x77, 0x22, 0x33, 0x22, 1, 0, 0, 0]);
}
