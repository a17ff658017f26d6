//! Overlapping checks of live objects.

use std::collections::BTreeMap;

use super::{LIVE, begin, class_change, end, excess_over};

#[test]
fn last_of_overlapping_checks_decides() {
    begin();
    *LIVE.lock().entry("streams").or_default() += 1;
    begin();
    assert!(end().is_none(), "the first check is still open");
    let before = end().unwrap();
    assert_eq!(excess_over(&before), BTreeMap::from([("streams", 1)]));
    *LIVE.lock().entry("streams").or_default() -= 1;
    assert!(excess_over(&before).is_empty());
}

#[test]
fn every_class_has_create_and_destroy_functions() {
    let mut classes = BTreeMap::<&str, [usize; 2]>::new();
    for (class, by) in crate::implemented().iter().filter_map(|function| class_change(function)) {
        classes.entry(class).or_default()[usize::from(by < 0)] += 1;
    }
    assert_eq!(classes.len(), 7, "{classes:?}");
    assert!(classes.values().all(|functions| functions.iter().all(|count| *count > 0)), "{classes:?}");
}
