//! Host pages of pinned memory, as the system and the driver report them.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use transload_core::RawBuffer;
use transload_cuda_sys::trace;
use transload_memory::{
    CudaMemoryManager, HostPages, MemoryResource, NumaBinding, PinnedResource, RegistrationCache,
    registration_edges,
};

use super::{heap::heap, manager};

const MIB: usize = 1 << 20;

fn start_of(buffer: &RawBuffer) -> usize {
    buffer.host_address().unwrap().as_ptr().addr()
}

/// The system's flags of the mapping around an address, in two letters each; `None` if unknown.
fn flags_at(address: usize) -> Option<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut within = false;
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((Some(from), Some(to))) = range.map(|(from, to)| (number(from), number(to))) {
            within = (from..to).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| within) {
            return Some(flags.split_whitespace().map(str::to_owned).collect());
        }
    }
    None
}

/// Whether advice about a mapping is visible. Processor emulators accept it without effect.
fn advice_is_kept() -> bool {
    const PAGE: usize = 65_536;
    // SAFETY: a new, exclusive mapping.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the mapping is this function's.
    let taken = unsafe { libc::madvise(start, PAGE, libc::MADV_DONTFORK) } == 0;
    let kept = flags_at(start.addr()).is_some_and(|flags| flags.iter().any(|flag| flag == "dc"));
    // SAFETY: as above.
    unsafe { libc::munmap(start, PAGE) };
    taken && kept
}

#[test]
fn pinned_pages_of_every_kind_have_a_device_address() {
    let (_device, memory) = manager();
    let memory = Arc::new(memory);
    for pages in [HostPages::Driver, HostPages::Ordinary, HostPages::Huge] {
        let segment = PinnedResource::new(&memory).with_pages(pages).allocate_segment(4 * MIB).unwrap();
        let slice = segment.slice(4096..).unwrap();
        assert_eq!(
            slice.device_address(),
            segment.device_address().map(|address| address + 4096),
            "{pages:?}"
        );
        assert!(slice.device_address().is_some(), "{pages:?}: devices use pinned memory in place");
    }
}

#[test]
fn own_pages_are_not_inherited_and_huge_on_request() {
    if !advice_is_kept() {
        println!("skipped: the system does not tell what it was advised about mappings");
        return;
    }
    let (_device, memory) = manager();
    let memory = Arc::new(memory);
    for (pages, huge) in [(HostPages::Ordinary, false), (HostPages::Huge, true)] {
        let segment = PinnedResource::new(&memory).with_pages(pages).allocate_segment(4 * MIB).unwrap();
        let flags = flags_at(start_of(&segment)).unwrap();
        let has = |flag: &str| flags.iter().any(|known| known == flag);
        assert!(has("dc"), "a pinned page of a child would be another page: {flags:?}");
        let possible = std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false);
        assert!(has("hg") == huge || !possible, "{pages:?}: {flags:?}");
    }
}

#[test]
fn freed_mapping_is_unmapped() {
    let (device, memory) = manager();
    let memory = Arc::new(memory);
    let resource = PinnedResource::new(&memory).with_pages(HostPages::Ordinary);
    let is_mapped = |address: usize| {
        let mut present = 0_u8;
        let page = std::ptr::without_provenance_mut::<libc::c_void>(address);
        // SAFETY: queries one page, mapped or not, into one byte.
        unsafe { libc::mincore(page, 1, (&raw mut present).cast()) == 0 }
    };
    // All at once: other threads may reuse one of the addresses meanwhile, but not all.
    let held: Vec<_> = (0..32).map(|_| resource.allocate_segment(256 * 1024).unwrap()).collect();
    let places: Vec<usize> = held.iter().map(start_of).collect();
    assert!(places.iter().all(|place| is_mapped(*place)));
    drop(held);
    resource.trim().unwrap();
    assert!(!places.iter().all(|place| is_mapped(*place)));
    drop(resource);
    assert!(memory.resource_counts().is_empty());
    drop(memory);
    device.assert_no_live_objects();
}

/// Whether the driver allocated, and whether memory was registered with it.
fn made(memory: &Arc<CudaMemoryManager>, pages: HostPages, bytes: usize) -> (bool, bool) {
    let resource = PinnedResource::new(memory).with_pages(pages).with_numa(NumaBinding::Anywhere);
    let trace = trace::start();
    drop(resource.allocate_segment(bytes).unwrap());
    let calls = trace.calls_of_this_thread();
    let has = |name: &str| calls.iter().any(|call| call.name == name);
    (has("cuMemHostAlloc"), has("cuMemHostRegister_v2"))
}

#[test]
fn small_and_driver_pages_come_from_the_driver() {
    let (_device, memory) = manager();
    let memory = Arc::new(memory);
    let (drivers, ours) = ((true, false), (false, true));
    assert_eq!(made(&memory, HostPages::Auto, 1), drivers);
    assert_eq!(made(&memory, HostPages::Auto, 2 * MIB - 1), drivers, "huge pages help from 2 MiB on");
    assert_eq!(made(&memory, HostPages::Driver, 5 * MIB), drivers);
    for pages in [HostPages::Ordinary, HostPages::Huge] {
        assert_eq!(made(&memory, pages, 1), ours, "{pages:?}");
    }
}

#[test]
fn edges_list_live_registrations() {
    let (_device, memory) = manager();
    let memory = Arc::new(memory);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = heap(65_536, true);
    let start = start_of(&buffer);
    let edges = || {
        let all = registration_edges(&(start..start + 65_536));
        all.into_iter().map(|edge| edge - start).collect::<Vec<_>>()
    };
    assert_eq!(edges(), []);
    let part = buffer.slice(1000..3000).unwrap();
    drop(cache.register(&part).unwrap());
    assert_eq!(edges(), [1000, 3000]);
    cache.forget(&part).unwrap();
    assert_eq!(edges(), [], "nothing is registered there any more");
}
