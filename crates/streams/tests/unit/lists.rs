//! The cut of batches into pieces.

use super::*;

#[test]
fn pieces_grow_with_the_batch_but_not_their_number() {
    assert_eq!(longest(0), LIST_PIECE);
    assert_eq!(longest(4 << 20), LIST_PIECE);
    assert_eq!(longest(64 << 20), 16 << 10);
    assert_eq!(longest((64 << 20) + 1), 20 << 10);
    assert_eq!(longest(300 << 20), 76 << 10);
    assert!((1_u64 << 60).div_ceil(longest(1 << 60)) <= LIST_CUTS);
    assert!(longest(u64::MAX) > 0, "the largest total does not overflow");
}
