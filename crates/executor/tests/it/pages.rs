//! Pages that were never touched are found and made.

use transload_executor::{is_absent, populating};

const MIB: usize = 1 << 20;

/// So large that no allocator serves it from memory that was used before.
const LARGE: usize = 80 * MIB;

#[test]
fn fresh_memory_is_absent_until_it_is_touched() {
    let mut memory = vec![0_u8; LARGE];
    let middle = memory.as_ptr().addr() + 40 * MIB;
    assert_eq!(is_absent(middle), cfg!(target_os = "linux"));
    memory[38 * MIB..42 * MIB].fill(9);
    assert!(!is_absent(middle));
}

#[test]
fn pages_of_a_piece_are_made_before_its_parts_are_visited_and_no_byte_changes() {
    for size in [3 * MIB + 5, 4 * MIB] {
        let mut memory = vec![0_u8; LARGE];
        memory[33 * MIB] = 7;
        let address = memory.as_ptr().addr();
        let mut visited = 0;
        // Neighbours share a page: it belongs to the first of them.
        for start in (0..LARGE).step_by(size) {
            populating(address, LARGE, start..LARGE.min(start + size), |part| {
                assert_eq!(part.start, visited, "in order, and none is left out");
                visited = part.end;
                // An emulator takes the advice and does nothing.
                if cfg!(target_arch = "x86_64") {
                    assert!(
                        !is_absent(address + part.start) && !is_absent(address + part.end - 1),
                        "{part:?}"
                    );
                }
            });
        }
        assert_eq!(visited, LARGE);
        let changed: Vec<_> = (0..LARGE).filter(|at| memory[*at] != 0).collect();
        assert_eq!((changed, memory[33 * MIB]), (vec![33 * MIB], 7));
    }
}

#[test]
fn what_is_not_mapped_is_not_absent_and_stays_as_it_is() {
    assert!(!is_absent(1 << 16) && !is_absent(usize::MAX));
    let mut visited = 0;
    populating(usize::MAX - MIB, MIB, 0..MIB, |part| visited += part.len());
    assert_eq!(visited, MIB);
}
