//! The future wgpu backend. **Not implemented:** this crate has no code, and no device `wgpu:N` is ever found.
//!
//! Planned: the traits of `transload-core` over `wgpu` (Vulkan, DX12, Metal on macOS), with `Queue::write_buffer` as
//! DirectCopy, a staging buffer and a copy as HostStaged, and mappable memory of an integrated GPU as ZeroCopy.
//!
//! Until then a transfer from or to a `wgpu:N` or `metal:N` is refused, since no registered backend has the device.
