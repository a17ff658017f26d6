//! Unified memory with types: one buffer for host and devices, guarded against both at once, and the same where the hardware
//! has nothing of the kind.
//!
//! | file | idea |
//! |---|---|
//! | `buffer` | [`UnifiedBuffer`], what users have |
//! | `mode` | which of two ways a buffer works in |
//! | `body` | a buffer without its element type |
//! | `host`, `slices` | the host's access: holds, and slices over them |
//! | `device_access`, `role` | a device's access, and the advice that goes with its purpose |
//! | `copies` | without shared memory: what is copied up when a slice closes, and down when one opens |
//! | `movement`, `advice` | prefetch and advice |
//! | `state`, `holders` | who has which range, and where its newest bytes are; nothing here calls the driver |

mod advice;
mod body;
mod buffer;
mod copies;
mod device_access;
mod holders;
mod host;
mod mode;
mod movement;
mod role;
mod slices;
mod state;

pub use buffer::{UnifiedAllocation, UnifiedBuffer};
pub use device_access::DeviceAccess;
pub use mode::UnifiedMode;
pub use role::Role;
pub use slices::{UnifiedSlice, UnifiedSliceMut};
