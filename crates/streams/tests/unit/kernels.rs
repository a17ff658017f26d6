//! Launch sizes of the built-in kernels.

use super::*;

#[test]
fn launch_has_a_thread_per_unit_up_to_a_full_device() {
    assert_eq!(blocks(0, 1 << 40, 1, 100), 1);
    assert_eq!(blocks(0, 4096, 4096, 100), 1);
    assert_eq!(blocks(0, 4096, 65_536, 100), 16);
    assert_eq!(blocks(8, 4096, 65_536, 100), 32);
    assert_eq!(blocks(1, 4096, 4096, 100), 16);
    assert_eq!(blocks(3, 3, 1 << 30, 100), 100);
    assert_eq!(blocks(0, 1, u64::MAX, 100), 100);
}
