//! Records of copies, fills, kernels and driver calls.
//!
//! Offsets follow `cupti_activity.h` of CUDA 12.9 and 13.5. They are the same in `CUpti_ActivityMemcpy5` to `7`, `...MemcpyPtoP4`, `...Memset4` and
//! `5`, and `...Kernel7` to `13`, of API versions 17 to 28 and 130000 to 130500; later versions append fields.

use transload_core::{DeviceId, Engine, EngineRecord, EngineTask, EngineWork, OperationId};

/// `CUPTI_ACTIVITY_KIND_...`.
const COPY: u32 = 1;
const FILL: u32 = 2;
const DRIVER: u32 = 4;
const KERNEL: u32 = 10;
const PEER_COPY: u32 = 22;
const CORRELATION: u32 = 39;

/// What is enabled: the record of a driver call comes after that of its operation.
pub(super) const KINDS: [u32; 6] = [CORRELATION, DRIVER, COPY, PEER_COPY, FILL, KERNEL];

/// `CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2`: PyTorch uses the other two.
pub(super) const OURS: u32 = 5;

/// Driver calls that enqueue nothing and are made often (`CUPTI_DRIVER_TRACE_CBID_...`): of events, waits, queries, contexts and captures.
pub(super) const UNRECORDED_CALLS: [u32; 17] =
    [14, 15, 119, 120, 121, 123, 125, 295, 303, 304, 323, 324, 499, 541, 780, 436, 439];

/// Oldest version whose records name the engine: CUDA 11.7.
pub(super) const OLDEST: u32 = 17;

/// Places of fields whose offsets differ.
struct Layout {
    device: usize,
    call: usize,
    channel: usize,
}

/// A record, as far as it is understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Known(EngineRecord),
    /// Of work whose times the library does not know, or cut off.
    Incomplete,
    /// Of another kind, or another user's.
    Foreign,
}

/// Reads the record at the start of `bytes`, which may hold more.
pub(super) fn read(bytes: &[u8]) -> Activity {
    let Some(kind) = u32_at(bytes, 0) else { return Activity::Incomplete };
    let record = match kind {
        COPY => work(bytes, copy_task(bytes), &Layout { device: 32, call: 44, channel: 80 }),
        PEER_COPY => work(bytes, EngineTask::CopyWithin, &Layout { device: 32, call: 60, channel: 88 }),
        FILL => work(bytes, EngineTask::Fill, &Layout { device: 32, call: 44, channel: 80 }),
        KERNEL => work(bytes, EngineTask::Kernel, &Layout { device: 40, call: 92, channel: 172 }),
        CORRELATION if u32_at(bytes, 4) != Some(OURS) => return Activity::Foreign,
        CORRELATION => called(bytes),
        _ => return Activity::Foreign,
    };
    record.map_or(Activity::Incomplete, Activity::Known)
}

fn called(bytes: &[u8]) -> Option<EngineRecord> {
    let operation = OperationId::of_number(u64_at(bytes, 8)?)?;
    Some(EngineRecord::Called { call: u32_at(bytes, 16)?.into(), operation })
}

fn work(bytes: &[u8], task: EngineTask, layout: &Layout) -> Option<EngineRecord> {
    let (begin, end) = (u64_at(bytes, 16)?, u64_at(bytes, 24)?);
    // 0 if the work is not complete, or could not be timed.
    if begin == 0 || end < begin {
        return None;
    }
    let engine = match u32_at(bytes, layout.channel)? {
        1 => Some(Engine::Compute),
        2 => Some(Engine::Copy),
        _ => None,
    };
    Some(EngineRecord::Worked(EngineWork {
        call: u32_at(bytes, layout.call)?.into(),
        device: DeviceId::Cuda(u32_at(bytes, layout.device)?),
        task,
        engine,
        bytes: if task == EngineTask::Kernel { 0 } else { u64_at(bytes, 8)? },
        begin: begin.cast_signed(),
        end: end.cast_signed(),
    }))
}

/// Returns the direction by `CUpti_ActivityMemcpyKind`.
fn copy_task(bytes: &[u8]) -> EngineTask {
    match bytes.get(4) {
        // From the host to a device, and to an array.
        Some(1 | 3) => EngineTask::CopyToDevice,
        Some(2 | 4) => EngineTask::CopyFromDevice,
        _ => EngineTask::CopyWithin,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
#[path = "../../tests/unit/activity.rs"]
mod tests;
