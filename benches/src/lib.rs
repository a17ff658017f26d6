//! The benchmark: copies of increasing size on the paths of the host and of one or two devices, compared with hand-written
//! ones and verified.
//!
//! [`suite`] runs it. Each row compares the transfer manager's automatic choice with a *reference*: the same copy written by
//! hand against the driver ([`reference`](mod@reference)). Both alternate in one run, so that drift of the machine affects
//! both. Contents are random and compared byte by byte in the first and the last repetition.
//!
//! Without a GPU, the CUDA rows come from the software driver. They are marked `simulated` and have no goals.

pub mod address;
pub mod against;
pub mod allocations;
#[cfg(any(target_os = "linux", windows))]
pub mod beside;
pub mod case;
#[cfg(any(target_os = "linux", windows))]
pub mod cast;
#[cfg(any(target_os = "linux", windows))]
pub mod choice;
#[cfg(any(target_os = "linux", windows))]
mod comparison;
pub mod content;
#[cfg(any(target_os = "linux", windows))]
pub mod cuda;
pub mod exit;
#[cfg(any(target_os = "linux", windows))]
pub mod first_use;
pub mod grid;
pub mod json;
#[cfg(target_os = "linux")]
pub mod load;
pub mod machine;
#[cfg(any(target_os = "linux", windows))]
pub mod many;
pub mod measure;
#[cfg(any(target_os = "linux", windows))]
pub mod memories;
pub mod memory;
#[cfg(any(target_os = "linux", windows))]
pub mod method_baselines;
pub mod methods;
pub mod options;
pub mod planted;
#[cfg(any(target_os = "linux", windows))]
pub mod prediction;
pub mod processors;
pub mod progress;
#[cfg(any(target_os = "linux", windows))]
pub mod raw_memory;
pub mod reference;
pub mod row;
mod row_key;
pub mod rows;
#[cfg(any(target_os = "linux", windows))]
pub mod scaling;
#[cfg(any(target_os = "linux", windows))]
pub mod streams;
#[cfg(any(target_os = "linux", windows))]
pub mod strided;
pub mod suite;
pub mod table;
pub mod threads;
#[cfg(all(feature = "wgpu", any(target_os = "linux", windows)))]
mod wgpu;

/// The examples of the README and of the pages in `docs`, compiled by `cargo test --doc`.
#[cfg(all(doctest, any(target_os = "linux", windows)))]
mod pages {
    #[doc = include_str!("../../docs/adopt.md")]
    struct Adopt;
    #[doc = include_str!("../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../docs/copies.md")]
    struct Copies;
    #[doc = include_str!("../../docs/kernels.md")]
    struct Kernels;
    #[doc = include_str!("../../docs/lost-device.md")]
    struct LostDevice;
    #[doc = include_str!("../../docs/pinned-memory.md")]
    struct PinnedMemory;
    #[doc = include_str!("../../docs/timing.md")]
    struct TimingPage;
    #[doc = include_str!("../../README.md")]
    struct Readme;
}
