//! Guarantees of registered memory.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::EndCheck;
use transload_cuda_sys::{check, ffi};
use transload_memory::{CudaMemoryManager, RegistrationCache};

use super::{
    heap::{heap, over, panicking_heap, watched},
    manager,
};

const PAGE: usize = 65_536;

fn cache(limit: u64) -> (EndCheck, Arc<CudaMemoryManager>, RegistrationCache) {
    let (device, memory) = manager();
    let memory = Arc::new(memory);
    let cache = RegistrationCache::new(&memory, limit).unwrap();
    (device, memory, cache)
}

fn finish((device, memory, cache): (EndCheck, Arc<CudaMemoryManager>, RegistrationCache)) {
    drop(cache);
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    device.assert_no_live_objects();
    device.assert_no_races();
}

fn registrations(work: impl FnOnce()) -> usize {
    let trace = transload_cuda_sys::trace::start();
    work();
    trace.calls_of_this_thread().iter().filter(|call| call.name == "cuMemHostRegister_v2").count()
}

#[test]
fn registered_memory_is_pinned_in_place_and_cached() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(1_000_000, true);
    assert_eq!(registrations(|| drop(all.2.register(&buffer).unwrap())), 1);
    let again = registrations(|| {
        let pinned = all.2.register(&buffer.slice(100..900_000).unwrap()).unwrap();
        assert_eq!((pinned.place().kind, pinned.len()), (MemoryKind::Pinned, 899_900));
        assert!(pinned.place().device.is_cpu());
        pinned.write().unwrap().fill(7);
    });
    assert_eq!(again, 0);
    let seen = buffer.read().unwrap();
    assert!(seen[..100].iter().all(|byte| *byte == 0) && seen[100..900_000].iter().all(|byte| *byte == 7));
    drop(seen);
    let statistics = all.2.statistics();
    assert_eq!((statistics.hits, statistics.registered, statistics.registrations), (1, 1, 1));
    assert!(statistics.bytes >= 1_000_000);
    drop(buffer);
    finish(all);
}

#[test]
fn buffer_is_busy_while_its_registration_is_used() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(1000, true);
    let view = buffer.read().unwrap();
    assert_eq!(all.2.register(&buffer).unwrap_err().kind(), ErrorKind::Busy, "a view is open");
    drop(view);
    let pinned = all.2.register(&buffer).unwrap();
    let part = pinned.slice(..10).unwrap();
    drop(pinned);
    for error in
        [buffer.read().unwrap_err(), buffer.write().unwrap_err(), all.2.register(&buffer).unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    drop(part);
    assert!(buffer.write().is_ok());
    drop(all.2.register(&buffer).unwrap());
    drop(buffer);
    finish(all);
}

#[test]
fn registered_source_is_read_with_its_owner_and_not_written() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(1000, true);
    let (one, two) = (all.2.register_source(&buffer).unwrap(), all.2.register_source(&buffer).unwrap());
    assert!(!one.is_writable() && two.read().is_ok() && buffer.read().is_ok());
    assert_eq!(one.write().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(buffer.write().unwrap_err().kind(), ErrorKind::Busy);
    drop((one, two));
    assert!(buffer.write().is_ok());
    let (fixed, _) = heap(1000, false);
    let (one, two) = (all.2.register(&fixed).unwrap(), all.2.register(&fixed).unwrap());
    assert!(!one.is_writable() && !two.is_writable());
    drop((one, two, fixed, buffer));
    finish(all);
}

#[test]
fn memory_is_kept_while_registered_and_freed_once() {
    let all = cache(u64::MAX);
    let ((first, first_freed), (second, second_freed)) = (heap(PAGE, true), heap(3 * PAGE, true));
    let pinned = all.2.register(&first).unwrap();
    drop(all.2.register(&second).unwrap());
    assert_eq!(all.2.forget(&first).unwrap_err().kind(), ErrorKind::Busy);
    drop((first, second));
    assert_eq!((first_freed.load(Ordering::SeqCst), second_freed.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(all.2.trim().unwrap(), 3 * PAGE as u64, "the other is in use");
    assert_eq!((first_freed.load(Ordering::SeqCst), second_freed.load(Ordering::SeqCst)), (0, 1));
    pinned.write().unwrap().fill(1);
    drop(pinned);
    assert_eq!(first_freed.load(Ordering::SeqCst), 0);
    all.2.trim().unwrap();
    assert_eq!((first_freed.load(Ordering::SeqCst), second_freed.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(all.2.statistics().evicted, 2);
    finish(all);
}

#[test]
fn forgotten_buffer_is_not_kept_alive() {
    let all = cache(u64::MAX);
    let (buffer, freed) = heap(PAGE, true);
    drop(all.2.register(&buffer).unwrap());
    all.2.forget(&buffer).unwrap();
    all.2.forget(&buffer).unwrap();
    drop(buffer);
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    finish(all);
}

#[test]
fn overlapping_ranges_merge_unless_in_use() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(10 * PAGE, true);
    let part = |range: std::ops::Range<usize>| buffer.slice(range.start * PAGE..range.end * PAGE).unwrap();
    let (left, middle) = (part(0..4), part(3..7));
    let used = all.2.register(&left).unwrap();
    // Its bytes are lent from within the overlap.
    assert_eq!(all.2.register(&middle).unwrap_err().kind(), ErrorKind::Busy);
    drop(used);
    let used = all.2.register(&middle).unwrap();
    assert_eq!(all.2.statistics().registrations, 1);
    assert_eq!(all.2.statistics().bytes, 7 * PAGE as u64);
    assert_eq!(registrations(|| drop(all.2.register(&part(0..3)).unwrap())), 0, "it lies within both");
    assert_eq!(all.2.register(&part(2..9)).unwrap_err().kind(), ErrorKind::Busy);
    // There is room for both.
    drop(all.2.register(&part(7..8)).unwrap());
    assert_eq!(all.2.statistics().registrations, 2);
    drop(used);
    drop(all.2.register(&buffer).unwrap());
    assert_eq!(all.2.statistics().registrations, 1);
    drop((left, middle, buffer));
    finish(all);
}

#[test]
fn ranges_of_one_page_are_registered_separately() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(PAGE, true);
    let parts: Vec<RawBuffer> =
        (0..8).map(|index| buffer.slice(index * 100..(index + 1) * 100).unwrap()).collect();
    let pinned: Vec<RawBuffer> = parts.iter().map(|part| all.2.register(part).unwrap()).collect();
    assert_eq!((all.2.statistics().registrations, all.2.statistics().bytes), (8, 800));
    for (index, part) in pinned.iter().enumerate() {
        part.write().unwrap().fill(index as u8 + 1);
    }
    drop(pinned);
    all.2.forget(&parts[3]).unwrap();
    assert_eq!(all.2.statistics().registrations, 7);
    drop(parts);
    let seen = buffer.read().unwrap();
    assert!((0..800).all(|at| usize::from(seen[at]) == at / 100 + 1));
    drop(seen);
    drop(buffer);
    finish(all);
}

#[test]
fn limit_evicts_the_least_recently_used() {
    let all = cache(4 * PAGE as u64);
    let made: Vec<_> = (0..3).map(|_| heap(2 * PAGE, true).0).collect();
    drop(all.2.register(&made[0]).unwrap());
    drop(all.2.register(&made[1]).unwrap());
    drop(all.2.register(&made[0]).unwrap());
    drop(all.2.register(&made[2]).unwrap());
    assert_eq!(all.2.statistics().bytes, 4 * PAGE as u64);
    assert_eq!(registrations(|| drop(all.2.register(&made[0]).unwrap())), 0, "it was used since");
    assert_eq!(registrations(|| drop(all.2.register(&made[1]).unwrap())), 1);
    let used = all.2.register(&made[0]).unwrap();
    let (large, _) = heap(3 * PAGE, true);
    let error = all.2.register(&large).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    let page = PAGE as u64;
    assert_eq!(
        (shortage.requested, shortage.free, shortage.total),
        (3 * page, Some(2 * page), Some(4 * page))
    );
    assert!(large.write().is_ok(), "a refusal lends nothing");
    drop((used, made, large));
    finish(all);
    let all = cache(0);
    let (buffer, _) = heap(1, true);
    assert_eq!(all.2.register(&buffer).unwrap_err().memory_shortage().unwrap().total, Some(0));
    finish(all);
}

#[test]
fn unregistrable_memory_is_refused_with_the_reason() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(100, true);
    let empty = buffer.slice(5..5).unwrap();
    assert_eq!(all.2.register(&empty).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        let Ok(memory) = all.1.allocate(kind, 100) else { continue };
        assert_eq!(all.2.register(&memory).unwrap_err().kind(), ErrorKind::Unsupported, "{kind}");
    }
    let pinned = all.1.allocate(MemoryKind::Pinned, 100).unwrap();
    assert_eq!(all.2.register(&pinned).unwrap().id(), pinned.id(), "it is pinned already");
    let registered = all.2.register(&buffer).unwrap();
    assert_eq!(all.2.register(&registered).unwrap().id(), registered.id());
    drop((pinned, registered, buffer));
    finish(all);
}

#[test]
fn foreign_registration_is_refused() {
    let all = cache(u64::MAX);
    let (buffer, _) = heap(PAGE, true);
    let start = buffer.host_address().unwrap().as_ptr();
    let context = all.1.device().context().unwrap().clone();
    let _bound = context.enter().unwrap();
    // SAFETY: the buffer owns the page.
    check("register", unsafe { ffi::cuMemHostRegister_v2(start.cast(), PAGE, 0) }).unwrap();
    let error = all.2.register(&buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(all.2.statistics().registrations, 0);
    // SAFETY: registered above.
    check("unregister", unsafe { ffi::cuMemHostUnregister(start.cast()) }).unwrap();
    drop(all.2.register(&buffer).unwrap());
    drop((_bound, buffer));
    drop(context);
    finish(all);
}

#[test]
fn foreign_memory_is_never_freed() {
    let all = cache(u64::MAX);
    let (owner, freed) = heap(2 * PAGE, true);
    let address = owner.host_address().unwrap();
    // SAFETY: the owner lives until the memory is forgotten, and is not used meanwhile.
    let foreign = unsafe { over(address, 2 * PAGE, true) };
    let pinned = all.2.register(&foreign).unwrap();
    pinned.write().unwrap().fill(9);
    let part = foreign.slice(..10).unwrap();
    assert_eq!(all.2.forget(&part).unwrap_err().kind(), ErrorKind::Busy);
    drop(pinned);
    all.2.forget(&part).unwrap();
    assert_eq!((all.2.statistics().registrations, freed.load(Ordering::SeqCst)), (0, 0));
    assert!(owner.read().unwrap().iter().all(|byte| *byte == 9));
    let beyond = NonNull::new(std::ptr::without_provenance_mut(usize::MAX - 10)).unwrap();
    // SAFETY: refused before the memory is accessed.
    let error = all.2.register(&unsafe { over(beyond, 100, true) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    drop(owner);
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    finish(all);
}

#[cfg(target_os = "linux")]
#[test]
fn read_only_mapping_is_a_source_or_refused() {
    let all = cache(u64::MAX);
    // SAFETY: an anonymous mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let address = NonNull::new(start.cast::<u8>()).unwrap();
    // SAFETY: the mapping is only unmapped after it is forgotten.
    let foreign = unsafe { over(address, PAGE, false) };
    match all.2.register(&foreign) {
        Ok(pinned) => assert!(!pinned.is_writable() && pinned.read().unwrap().iter().all(|byte| *byte == 0)),
        // The driver's code for this is not documented.
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Device), "{error}");
        }
    }
    all.2.forget(&foreign).unwrap();
    drop(foreign);
    // SAFETY: mapped above and not registered.
    unsafe { libc::munmap(start, PAGE) };
    finish(all);
}

#[test]
fn many_threads_register_and_forget_overlapping_ranges() {
    watched(|| {
        let all = cache(24 * PAGE as u64);
        let (buffer, _) = heap(16 * PAGE, true);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (cache, buffer) = (&all.2, &buffer);
                scope.spawn(move || {
                    let mut seed = 0x9E37_79B9_7F4A_7C15 ^ (thread + 1);
                    let mut below = |bound: usize| {
                        seed ^= seed << 13;
                        seed ^= seed >> 7;
                        seed ^= seed << 17;
                        (seed >> 33) as usize % bound
                    };
                    for round in 0..200 {
                        let from = below(15 * PAGE);
                        let part = buffer.slice(from..from + 1 + below(PAGE)).unwrap();
                        match cache.register(&part) {
                            Ok(pinned) => pinned.write().unwrap().fill(round as u8),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                        }
                        match below(10) {
                            0 => drop(cache.forget(&part)),
                            1 => drop(cache.trim().unwrap()),
                            _ => {}
                        }
                    }
                });
            }
        });
        let statistics = all.2.statistics();
        assert!(statistics.bytes <= 24 * PAGE as u64, "{statistics:?}");
        drop(buffer);
        finish(all);
    });
}

#[test]
fn panic_in_an_owners_destructor_leaves_the_rest_intact() {
    watched(|| {
        let all = cache(u64::MAX);
        let (here, there) = (panicking_heap(PAGE), panicking_heap(PAGE));
        drop((all.2.register(&here).unwrap(), all.2.register(&there).unwrap()));
        drop((here, there));
        let forgotten = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| all.2.trim()));
        assert!(forgotten.is_err(), "on the thread that ends the registration");
        assert_eq!(all.2.statistics().registrations, 0, "the other one ended all the same");
        // The rest is released on the free thread, which keeps working.
        drop(all.2.register(&panicking_heap(PAGE)).unwrap());
        let (buffer, freed) = heap(PAGE, true);
        drop(all.2.register(&buffer).unwrap());
        drop(buffer);
        finish(all);
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    });
}

/// Half of a block of memory, whose destructor runs user code.
struct Half {
    block: Arc<Block>,
    offset: usize,
    at_end: Box<dyn Fn() + Send + Sync>,
}

/// Two pages.
struct Block(std::cell::UnsafeCell<Vec<u8>>);

// SAFETY: the bytes are used through the buffers over the halves, which order that.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Half {
    fn drop(&mut self) {
        (self.at_end)();
    }
}

// SAFETY: the block has this many initialised bytes after the offset, and no other buffer covers them.
unsafe impl transload_core::Storage for Half {
    fn place(&self) -> transload_core::Place {
        transload_core::Place::new(transload_core::DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        PAGE
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        // SAFETY: no reference to the vector exists, and the offset lies within it.
        NonNull::new(unsafe { (*self.block.0.get()).as_mut_ptr().add(self.offset) })
    }

    fn device_address(&self) -> Option<u64> {
        None
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Two adjacent ranges; the destructor of the lower one runs a closure.
fn halves(at_end: impl Fn(&RawBuffer) + Send + Sync + 'static) -> (RawBuffer, RawBuffer) {
    let block = Arc::new(Block(vec![0; 2 * PAGE].into()));
    let half = |offset, at_end| {
        RawBuffer::new(Box::new(Half { block: Arc::clone(&block), offset, at_end }), &Arc::default())
    };
    let upper = half(PAGE, Box::new(|| {}));
    let seen = upper.clone();
    (half(0, Box::new(move || at_end(&seen))), upper)
}

#[test]
fn an_owner_may_use_the_cache_in_its_destructor() {
    watched(|| {
        let (device, memory, cache) = cache(u64::MAX);
        let cache = Arc::new(cache);
        let (ours, registered) = (Arc::downgrade(&cache), Arc::new(std::sync::atomic::AtomicU64::new(0)));
        let noted = Arc::clone(&registered);
        let (lower, upper) = halves(move |upper| {
            if let Some(cache) = ours.upgrade() {
                drop(cache.register(upper).unwrap());
                noted.fetch_add(1, Ordering::SeqCst);
            }
        });
        drop((cache.register(&lower).unwrap(), cache.register(&upper).unwrap()));
        drop(lower);
        // Both are marked busy, and the lower one is ended first.
        assert_eq!(cache.trim().unwrap(), 2 * PAGE as u64);
        assert_eq!((registered.load(Ordering::SeqCst), cache.statistics().registrations), (1, 1));
        drop(upper);
        let cache = Arc::into_inner(cache).unwrap();
        finish((device, memory, cache));
    });
}

#[test]
fn an_owner_may_drain_the_manager_in_its_destructor() {
    watched(|| {
        let (device, memory, cache) = cache(u64::MAX);
        let (there, drained) = (Arc::clone(&memory), Arc::new(std::sync::atomic::AtomicU64::new(0)));
        let noted = Arc::clone(&drained);
        let (lower, upper) = halves(move |_| {
            there.drain().unwrap();
            noted.fetch_add(1, Ordering::SeqCst);
        });
        drop(cache.register(&lower).unwrap());
        drop((lower, upper));
        // The registration and its owner are released on the free thread.
        drop(cache);
        memory.drain().unwrap();
        assert_eq!(drained.load(Ordering::SeqCst), 1);
        let cache = RegistrationCache::new(&memory, 0).unwrap();
        finish((device, memory, cache));
    });
}
