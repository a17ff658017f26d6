//! Size classes.

use transload_core::SizeClass;

#[test]
fn class_bounds_are_inclusive() {
    for class in SizeClass::ALL {
        let Some(largest) = class.largest() else { continue };
        assert_eq!(SizeClass::of(largest), class);
        assert_eq!(SizeClass::of(largest + 1).index(), class.index() + 1);
    }
    assert_eq!(SizeClass::of(0), SizeClass::UpTo4KiB);
    assert_eq!(SizeClass::of(u64::MAX), SizeClass::Larger);
}
