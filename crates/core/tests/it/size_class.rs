//! Size classes.

use transload_core::SizeClass;

#[test]
fn each_bound_belongs_to_its_class_and_the_next_byte_to_the_next() {
    for class in SizeClass::ALL {
        let Some(largest) = class.largest() else { continue };
        assert_eq!(SizeClass::of(largest), class);
        assert_eq!(SizeClass::of(largest + 1).index(), class.index() + 1);
    }
    assert_eq!(SizeClass::of(0), SizeClass::UpTo4KiB);
    assert_eq!(SizeClass::of(u64::MAX), SizeClass::Larger);
}
