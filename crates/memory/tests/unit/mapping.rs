//! Mappings: alignment, length and content.

use super::*;

#[test]
fn pages_are_zeroed_aligned_and_rounded_up_to_one_page() {
    for (bytes, huge, alignment) in [(1, false, page()), (1, true, HUGE), ((5 << 20) + 3, true, HUGE)] {
        let mapping = Mapping::new(bytes, MappingOptions { huge, node: Some(0) }).unwrap();
        assert!(mapping.start().addr().get().is_multiple_of(alignment), "{bytes}");
        assert_eq!(mapping.len(), bytes.next_multiple_of(page()));
        // SAFETY: the mapping has this many initialised bytes.
        let content = unsafe { std::slice::from_raw_parts_mut(mapping.start().as_ptr(), bytes) };
        assert!(content.iter().all(|byte| *byte == 0));
        content.fill(7);
    }
}

fn is_present(mapping: &Mapping) -> bool {
    let mut present = vec![0_u8; mapping.len() / page()];
    // SAFETY: the vector has a byte for each page of the mapping.
    let asked =
        unsafe { libc::mincore(mapping.start().as_ptr().cast(), mapping.len(), present.as_mut_ptr().cast()) };
    asked != 0 || present.iter().all(|page| page & 1 == 1)
}

#[test]
fn concurrent_populate_touches_every_page() {
    if !is_present(&Mapping::new(1, MappingOptions { huge: false, node: None }).unwrap()) {
        println!(
            "skipped: this system takes the advice to have pages present and does nothing, as qemu-user does"
        );
        return;
    }
    let mapping = Mapping::new((67 << 20) + 1, MappingOptions { huge: true, node: None }).unwrap();
    assert!(is_present(&mapping));
}

#[test]
fn mapping_above_available_memory_is_refused() {
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 50, usize::MAX - 4095] {
        let error = Mapping::new(bytes, MappingOptions { huge: true, node: None }).err().unwrap();
        assert_eq!(error.kind(), transload_core::ErrorKind::OutOfMemory, "{bytes}");
        assert_eq!(error.memory_shortage().unwrap().requested, bytes as u64);
    }
}
