//! The place of the backend for wgpu. **Not begun:** there is no code here, and no device `wgpu:N` is ever found.
//!
//! What it will be: the traits of `transload-core` over `wgpu` (Vulkan, DX12, Metal on macOS). The queue's own write as
//! DirectCopy, a staging buffer and a copy as HostStaged, mappable memory of an integrated GPU as ZeroCopy.
//!
//! Until then a transfer from or to a `wgpu:N` or `metal:N` is refused: no registered backend knows the device.
