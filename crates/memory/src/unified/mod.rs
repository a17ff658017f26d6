//! Unified memory with types: one buffer for host and devices, guarded against both at once, and the same where the hardware
//! has nothing of the kind.
//!
//! | file | idea |
//! |---|---|
//! | `buffer` | [`UnifiedBuffer`], what users have |
//! | `mode` | which of two ways a buffer works in |
//! | `inner` | a buffer without its element type |
//! | `host`, `slices` | the host's access: holds, and slices over them |
//! | `device_access`, `role` | a device's access, and the advice that goes with its purpose |
//! | `copies` | without shared memory: what is copied up when a slice closes, and down when one opens |
//! | `movement`, `advice` | prefetch and advice |
//! | `state`, `locks` | who has which range, and where its newest bytes are; nothing here calls the driver |

mod advice;
mod buffer;
mod copies;
mod device_access;
mod host;
mod inner;
mod mode;
mod prefetch;
mod range_locks;
mod role;
mod slices;
mod state;

pub use buffer::{UnifiedAllocation, UnifiedBuffer};
pub use device_access::DeviceAccess;
pub use mode::UnifiedMode;
pub use role::Role;
pub use slices::{UnifiedSlice, UnifiedSliceMut};
