//! Slots by readers, loads and cache.

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn slots_fill_half_of_the_cache_or_are_the_least() {
    let h200 = Some(300 * MIB);
    assert_eq!([4, 8, 12, 16, 24].map(|readers| slot(readers, 1, h200) / MIB), [2, 2, 4, 4, 2]);
    assert_eq!([12, 16, 24].map(|readers| slot(readers, 2, h200) / MIB), [2, 2, 1]);
    for (readers, loads, cache) in [(1, 1, 1), (1, 0, 1 << 40), (64, 1000, 1 << 30), (0, 1, 0)] {
        let slot = slot(readers, loads, Some(cache));
        assert!((LEAST_SLOT..=4 * MIB).contains(&slot) && slot.is_power_of_two(), "{readers}: {slot}");
    }
    assert_eq!((slot(16, 1, None), slot(usize::MAX, usize::MAX, h200)), (4 * MIB, MIB));
}

#[test]
fn buffers_of_a_load_hold_128_mib_or_are_four() {
    let of = |readers, chunk: usize| buffers(readers, chunk << 20);
    assert_eq!([of(16, 1), of(16, 4), of(64, 1), of(64, 4), of(1, 4)], [32, 32, 128, 32, 2]);
    assert_eq!([of(16, 16), of(16, 64), of(64, 1 << 20), of(1, 64), of(16, 0)], [8, 4, 4, 2, 32]);
}
