//! Formatted sizes, counts and rates.

use super::*;

#[test]
fn sizes_counts_and_rates_are_formatted() {
    assert_eq!(bytes(1023), "1023 B");
    assert_eq!(bytes(64 << 20), "64 MiB");
    assert_eq!(bytes((3 << 20) + 1), "3.0 MiB");
    assert_eq!(bytes(u64::MAX), "16777216 TiB");
    assert_eq!(rate(55.2e9), "55.20 GB/s");
    assert_eq!(rate(1.5e6), "1.50 MB/s");
}
