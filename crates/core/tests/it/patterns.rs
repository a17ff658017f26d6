//! Patterns say how long they are and what they leave; an element is filled by the shortest that gives it.

use transload_core::Pattern;

const ALL: [Pattern; 5] = [
    Pattern::U8(0xA1),
    Pattern::U16(0xA1B2),
    Pattern::U32(0xA1B2_C3D4),
    Pattern::U64(0xA1B2_C3D4_E5F6_0718),
    Pattern::U128(0xA1B2_C3D4_E5F6_0718_293A_4B5C_6D7E_8F90),
];

#[test]
fn a_pattern_leaves_its_number_over_and_over() {
    for (pattern, width) in ALL.into_iter().zip([1, 2, 4, 8, 16]) {
        assert_eq!(pattern.width(), width);
        let repeated = pattern.repeated();
        assert!(repeated.chunks(width).all(|chunk| *chunk == repeated[..width]), "{pattern:?}");
        assert_eq!(Pattern::from_bytes(&repeated), Some(pattern), "none is shorter");
    }
    assert_eq!(Pattern::U8(9).repeated(), [9; 16]);
    assert_eq!(Pattern::U16(0x1234).repeated()[..2], 0x1234_u16.to_ne_bytes());
    assert_eq!(Pattern::U32(0x1234_5678).repeated()[..4], 0x1234_5678_u32.to_ne_bytes());
    assert_eq!(Pattern::U64(1 << 40).repeated()[..8], (1_u64 << 40).to_ne_bytes());
    assert_eq!(Pattern::U128(1 << 100).repeated(), (1_u128 << 100).to_ne_bytes());
}

#[test]
fn an_element_is_reduced_to_the_shortest_pattern_that_gives_it() {
    for pattern in ALL {
        for times in 1..5 {
            let element = pattern.repeated()[..pattern.width()].repeat(times);
            assert_eq!(Pattern::from_bytes(&element), Some(pattern), "{times} times");
        }
        assert_eq!(pattern.shortest(), pattern);
    }
    assert_eq!(Pattern::from_bytes(&[3; 3]), Some(Pattern::U8(3)));
    assert_eq!(Pattern::U128(0).shortest(), Pattern::U8(0));
    assert_eq!(Pattern::U64(0x0102_0102_0102_0102).shortest(), Pattern::U16(0x0102));
    assert_eq!(Pattern::U16(0x0101).shortest(), Pattern::U8(1));
    let third = 1.0_f32.to_ne_bytes();
    assert_eq!(Pattern::from_bytes(&third.repeat(3)), Some(Pattern::U32(1.0_f32.to_bits())));
    let pairs = [[1_u8; 8], [2; 8]].concat().repeat(3);
    assert_eq!(Pattern::from_bytes(&pairs[..]).map(Pattern::width), Some(16));
}

#[test]
fn what_no_pattern_gives_has_none() {
    let counted: Vec<u8> = (0..48).collect();
    for bytes in [0, 3, 5, 6, 7, 9, 10, 11, 12, 13, 15, 17, 18, 20, 24, 32, 48] {
        assert_eq!(Pattern::from_bytes(&counted[..bytes]), None, "{bytes} different bytes");
    }
    // Two of 8 and half of a third do not come out even.
    assert_eq!(Pattern::from_bytes(&[&counted[..8], &counted[..8], &counted[..4]].concat()), None);
    // The last byte alone differs.
    assert_eq!(
        Pattern::from_bytes(&[[0; 16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]].concat()),
        None
    );
}
