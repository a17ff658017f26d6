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
