//! Pages that were never touched are found and made.

use transload_executor::AbsentPages;

const MIB: usize = 1 << 20;

/// So large that no allocator serves it from memory that was used before.
const LARGE: usize = 80 * MIB;

#[test]
fn populating_fresh_memory_makes_its_pages_and_changes_no_byte() {
    let mut memory = vec![0_u8; LARGE];
    let address = memory.as_ptr().addr();
    let absent = |piece| AbsentPages::of(address, LARGE, piece);
    let (middle, last) = (32 * MIB..40 * MIB, LARGE - 3 * MIB..LARGE);
    if !cfg!(target_os = "linux") {
        assert_eq!(absent(middle), None);
        return;
    }
    assert!(absent(0..MIB).is_some() && absent(middle.clone()).is_some() && absent(last.clone()).is_some());
    memory[33 * MIB] = 7;
    absent(middle.clone()).unwrap().populate();
    // An emulator takes the advice and does nothing.
    if cfg!(target_arch = "x86_64") {
        assert_eq!(absent(middle), None, "populated");
        assert_eq!(absent(38 * MIB..40 * MIB), None, "populated to the end of the piece");
    }
    assert!(absent(last.clone()).is_some(), "nobody touched it");
    memory[LARGE - 3 * MIB..].fill(9);
    assert_eq!(absent(last), None, "touched");
    let counted = |value| memory.iter().filter(|byte| **byte == value).count();
    assert_eq!((counted(7), counted(9), counted(0)), (1, 3 * MIB, LARGE - 3 * MIB - 1));
}

#[test]
fn pieces_leave_no_page_out() {
    for piece in [3 * MIB + 5, 4 * MIB] {
        let memory = vec![0_u8; LARGE];
        let absent = |piece| AbsentPages::of(memory.as_ptr().addr(), LARGE, piece);
        (0..LARGE)
            .step_by(piece)
            .filter_map(|start| absent(start..LARGE.min(start + piece)))
            .for_each(AbsentPages::populate);
        if cfg!(target_arch = "x86_64") {
            let left = (0..LARGE).step_by(MIB).find(|start| absent(*start..LARGE.min(start + MIB)).is_some());
            assert_eq!(left, None, "pieces of {piece}");
        }
    }
}

#[test]
fn memory_that_is_not_there_is_not_absent() {
    assert_eq!(AbsentPages::of(4096, MIB, 0..MIB), None);
    assert_eq!(AbsentPages::of(usize::MAX - MIB, 2 * MIB, 0..MIB), None);
    assert_eq!(AbsentPages::of(usize::MAX - MIB, MIB, 0..MIB), None);
}
