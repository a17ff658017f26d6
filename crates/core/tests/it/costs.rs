//! Predictions of a cost model.

use std::time::Duration;

use transload_core::CostModel;

#[test]
fn prediction_interpolates_and_extrapolates_measured_points() {
    let micros = Duration::from_micros;
    let model =
        CostModel::through(&[(1 << 20, micros(30)), (4096, micros(8)), (2 << 20, micros(50))]).unwrap();
    assert_eq!(model.predict(4096), micros(8));
    assert_eq!(model.predict(1 << 20), micros(30));
    assert_eq!(model.predict(3 << 20).as_micros(), 70);
    let between = model.predict(500_000);
    assert!(between > micros(8) && between < micros(30));
}

#[test]
fn a_model_needs_two_sizes() {
    assert_eq!(CostModel::through(&[(1, Duration::ZERO), (1, Duration::from_secs(1))]), None);
}

#[test]
fn latency_and_bandwidth_add_up() {
    let model = CostModel::linear(Duration::from_micros(10), 1e9);
    assert_eq!(model.predict(0), Duration::from_micros(10));
    assert_eq!(model.predict(1_000_000).as_micros(), 1010);
}

/// A curve whose last point is at `end`, with another slope before it.
fn curve(end: u64) -> CostModel {
    let micros = Duration::from_micros;
    CostModel::through(&[(1 << 10, micros(10)), (end / 2, micros(9_000)), (end, micros(20_000))]).unwrap()
}

#[test]
fn scaled_sizes_leave_all_others_as_they_were() {
    for end in [128 << 20, (256 << 20) - 1, 256 << 20, 200 << 20, 512 << 20] {
        let model = curve(end);
        for factor in [0.1, 0.8, 1.3, 3.0] {
            let sizes = (128 << 20)..=(256 << 20) - 1;
            let scaled = model.scaled(sizes.clone(), factor);
            for mib in [0, 1, 64, 127, 128, 200, 255, 256, 257, 600, 1 << 20] {
                let bytes: u64 = mib << 20;
                let wanted = model.predict(bytes).mul_f64(if sizes.contains(&bytes) { factor } else { 1.0 });
                let found = scaled.predict(bytes);
                // Far points are known to so many digits.
                assert!(
                    found.abs_diff(wanted) <= wanted / 1_000_000,
                    "{end} {factor} {mib}: {found:?} {wanted:?}"
                );
            }
        }
    }
}

#[test]
fn no_prediction_is_below_all_known_times() {
    let micros = Duration::from_micros;
    let model = CostModel::through(&[(1, micros(20)), (2, micros(10))]).unwrap();
    assert_eq!([0, 100, u64::MAX].map(|bytes| model.predict(bytes)), [20, 10, 10].map(micros));
    assert_eq!(model.scaled(10..=u64::MAX, 2.0).predict(u64::MAX), micros(20));
    let steep = CostModel::through(&[(256, micros(1)), (1024, micros(4))]).unwrap();
    assert_eq!([0, 1, 256].map(|bytes| steep.predict(bytes)), [1; 3].map(micros));
    assert_eq!(model.scaled(0..=1, 2.0).predict(1), micros(40));
}
