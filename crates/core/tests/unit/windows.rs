//! The memory that Windows reports.

use super::*;

#[test]
fn some_of_what_there_is_is_free() {
    let MemoryInfo { free, total } = memory().unwrap();
    assert!(0 < free && free < total, "{free} of {total}");
}
