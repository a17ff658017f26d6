//! Launch sizes of the built-in kernels.

use super::*;

#[test]
fn launch_has_a_thread_per_unit_up_to_a_full_device() {
    assert_eq!(blocks(1, 100), 1);
    assert_eq!(blocks(4096, 100), 1);
    assert_eq!(blocks(65_536, 100), 16);
    assert_eq!(blocks(1 << 30, 100), 100);
    assert_eq!(blocks(u64::MAX, 100), 100);
}
