//! Typed unified memory: one buffer for host and devices, with access guards for both, also on hardware without managed
//! memory.
//!
//! | file | idea |
//! |---|---|
//! | `buffer` | [`UnifiedBuffer`], the public type |
//! | `mode` | managed memory, or device memory with a host copy |
//! | `inner` | a buffer without its element type |
//! | `host`, `slices` | host access: guards, and slices over them |
//! | `device_access`, `role` | device access, and the advice for its purpose |
//! | `copies` | explicit mode: uploads when a slice closes, downloads when one opens |
//! | `prefetch`, `advice` | prefetch and advice |
//! | `state`, `range_locks` | open ranges, and where the newest bytes are; calls no driver |

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
