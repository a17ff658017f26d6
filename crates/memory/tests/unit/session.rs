//! Buffers that CUPTI fills and returns.

use std::ptr;

use super::*;

#[test]
fn foreign_buffer_is_not_freed_and_ours_is_freed_once() {
    let mut theirs = vec![1_u8; 100_000];
    completed(ptr::null_mut(), 0, theirs.as_mut_ptr(), theirs.len(), 0);
    completed(ptr::null_mut(), 0, ptr::null_mut(), 0, 0);
    assert!(theirs.iter().all(|byte| *byte == 1), "it was freed");
    let (mut ours, mut size, mut most) = (ptr::null_mut(), 0, 1);
    requested(&mut ours, &mut size, &mut most);
    assert!(!ours.is_null() && ours.addr().is_multiple_of(8));
    assert_eq!((size, most), (BUFFER.size(), 0));
    completed(ptr::null_mut(), 0, ours, size, 0);
    assert!(!is_ours(ours), "it was freed");
}

#[test]
fn records_that_were_not_understood_are_lost_to_who_wants_their_kind() {
    let migrations = Listener::Migrations(Arc::new(Mutex::new(Regions::of(0))));
    assert_eq!(migrations.of_its_kinds([1, 5]), 1, "a kernel that still runs moves nothing");
}
