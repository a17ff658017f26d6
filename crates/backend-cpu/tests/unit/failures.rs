//! Which error a point of a timeline keeps.

use transload_core::ErrorKind;

use super::*;

#[test]
fn points_keep_their_own_errors() {
    let mut failures = Failures::default();
    let error = |text: &'static str| Error::new(ErrorKind::Device, text);
    for (point, text) in [(2, "a"), (3, "a"), (4, "b"), (7, "a")] {
        failures.add(point, error(text));
    }
    assert_eq!(failures.len(), 3);
    for (point, text) in [(2, "a"), (3, "a"), (4, "b"), (7, "a")] {
        assert_eq!(failures.of(point).unwrap_err().to_string(), error(text).to_string());
    }
    assert!([1, 5, 6, 8].iter().all(|point| failures.of(*point).is_ok()));
    failures.clear();
    assert!(failures.of(2).is_ok());
}
