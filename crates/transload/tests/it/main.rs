//! The facade: discovery does not fail without a GPU, absence is explained, and after a drain nothing is left.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod adopt;
mod array;
mod bad_use;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod beside_cust;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod blocks;
#[cfg(feature = "calibration")]
mod calibration;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cast;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod copy_on;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda;
mod discover;
mod drain;
#[path = "../../../core/tests/shared/gate.rs"]
mod elsewhere;
#[cfg(feature = "profiler")]
#[path = "../../../profiler/tests/trace/fields.rs"]
mod fields;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[path = "../../../streams/tests/it/support/gate.rs"]
#[allow(dead_code, reason = "shared with the tests of streams")]
mod gate;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod gpu;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod host_work;
mod io;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod lanes;
mod limits;
#[cfg(feature = "safetensors")]
mod load;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod many;
#[cfg(feature = "profiler")]
#[path = "../../../profiler/tests/trace/packets.rs"]
#[allow(dead_code, reason = "shared with the tests of traces")]
mod packets;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod pinned;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod polled;
#[cfg(feature = "profiler")]
mod profiled;
#[path = "../../../streams/tests/it/support/programs.rs"]
mod programs;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod recorded;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod registered;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod repeated;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod staged;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod strided;
mod tasks;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod through_device;
mod uncalibrated;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod unified;
mod views;
#[cfg(all(feature = "wgpu", any(target_os = "linux", windows)))]
mod wgpu;
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod zero_copy;
