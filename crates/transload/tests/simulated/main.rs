//! The transfer manager with devices that have no peer access, corrupt data, or fail; on the software driver only.
#![cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod adopt;
#[cfg(all(feature = "wgpu", target_os = "linux"))]
mod between;
#[cfg(feature = "calibration")]
mod calibration;
mod casts;
mod choices;
#[path = "../../../core/tests/shared/gate.rs"]
mod gate;
mod list_choices;
#[cfg(feature = "safetensors")]
#[path = "../it/load/mod.rs"]
#[allow(dead_code, reason = "shared with the tests that run on hardware")]
mod load;
#[cfg(feature = "safetensors")]
mod load_faults;
mod lost_peers;
mod many;
mod peers;
mod scratch_memory;
#[path = "../peers/setup.rs"]
mod setup;
mod staged;
mod staged_failures;
mod stream_faults;
#[path = "../../../streams/tests/it/support/gate.rs"]
#[allow(dead_code, reason = "shared with the tests of streams")]
mod stream_gate;
mod through_device;
#[path = "../it/uncalibrated.rs"]
mod uncalibrated;
mod zero_copy;

/// Drop errors are process-wide: tests that take them run one at a time.
fn alone_with_drop_errors() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _others = transload_cuda_sys::take_drop_errors();
    guard
}
