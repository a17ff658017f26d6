//! The driver's result codes that this crate acts on, as integers.
//!
//! Source: `CUresult` in the CUDA driver API. Codes are stable across versions; new ones are only added.

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
pub(crate) const NOT_SUPPORTED: u32 = 801;
pub(crate) const UNKNOWN: u32 = 999;

/// Not a driver's code: no driver could be loaded.
pub(crate) const ABSENT_DRIVER: u32 = 0xFFFF_0001;
/// Not a driver's code: the driver lacks the function.
pub(crate) const ABSENT_FUNCTION: u32 = 0xFFFF_0002;

/// Codes after which the context is unusable: ECC and NVLink errors, a contained error, illegal address, launch
/// timeout, a destroyed context, a kernel's assertion, hardware stack error, illegal instruction, misaligned address,
/// invalid address space, invalid program counter, launch failure, leaked tensor memory, a lost MPS client,
/// an error of an external device that was waited for.
pub(crate) const STICKY: [u32; 16] =
    [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911];

/// Codes of a driver that has shut down, as at process exit: no context works any more.
pub(crate) const GONE: [u32; 2] = [3, 4];
