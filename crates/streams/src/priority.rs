//! The three priorities of this library as numbers of the device.

use transload_core::{Result, StreamPriority};
use transload_cuda_sys::Context;
use transload_memory::lift;

/// The driver's number for a priority: the ends of the device's range, and its middle for the normal one.
pub(crate) fn of(context: &Context, priority: StreamPriority) -> Result<i32> {
    let (least, greatest) = context.stream_priority_range().map_err(lift)?;
    Ok(match priority {
        StreamPriority::High => greatest,
        // The driver's default, 0, is the least urgent number of the usual range of 0 to -5.
        StreamPriority::Normal => i32::midpoint(least, greatest),
        StreamPriority::Low => least,
    })
}
