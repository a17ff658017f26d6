//! Captures operations on private streams, independent ones concurrently.

use std::sync::Arc;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, Operation, Result, StreamPriority};
use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, Context, DriverError, Event, EventTiming, Graph, Stream,
};
use transload_memory::{CudaDevice, FixedList, lift_in};

use super::plan::{Step, plan};
use crate::{
    CudaStream,
    submit::{addresses::DriverAddress, batches::BatchCall, driver_calls::DriverCalls, kernels::Kernels},
};

/// A graph of operations, and what its nodes use besides their memory.
pub(super) struct Captured {
    pub(super) graph: Graph,
    pub(super) kernels: Option<Arc<Kernels>>,
    pub(super) lists: Vec<FixedList>,
}

/// Captures the operations. Nothing is enqueued and no data is touched.
///
/// The capture is relaxed: calls of other threads do not invalidate it, and this one invalidates no other.
pub(super) fn capture(
    device: &CudaDevice,
    priority: StreamPriority,
    operations: &[Operation<'_>],
) -> Result<Captured> {
    if operations.is_empty() {
        return Err(Error::new(ErrorKind::InvalidArgument, "a recording needs at least one operation"));
    }
    for (index, operation) in operations.iter().enumerate() {
        operation.validate()?;
        check_recordable(index, operation, device.id())?;
    }
    let steps = plan(operations);
    let branches = steps.iter().map(|step| step.branch + 1).max().unwrap_or(1);
    let streams: Vec<CudaStream> =
        (0..branches).map(|_| CudaStream::new_with_priority(device, priority)).collect::<Result<_>>()?;
    let (mut work, mut lists) = (Vec::with_capacity(steps.len()), Vec::new());
    for (operation, step) in operations.iter().zip(&steps) {
        let stream = streams.get(step.branch).ok_or_else(no_stream)?;
        work.push((capturable(DriverCalls::of(operation, stream)?, &mut lists)?, step));
    }
    let uses_kernels = work.iter().any(|(calls, _)| calls.launch_kernels());
    let context = device.context()?;
    let kernels = if uses_kernels { Some(Kernels::of(context)?) } else { None };
    let drivers: Vec<&Stream> = streams.iter().map(CudaStream::driver).collect();
    let (first, others) = drivers.split_first().ok_or_else(no_stream)?;
    let graph = capture_on(context, first, others, &mut work).map_err(|error| lift_in(context, error))?;
    Ok(Captured { graph, kernels, lists })
}

/// Replaces `cuMemcpyPeerAsync` and batch calls, which cannot be captured (driver 580 returns 900). Peer access is enabled before a
/// peer copy is chosen, so an ordinary copy between the addresses is equivalent; a batch becomes a node for each copy. The list of a
/// batch in place is written now, and added to `lists`.
fn capturable<'a>(calls: DriverCalls<'a>, lists: &mut Vec<FixedList>) -> Result<DriverCalls<'a>> {
    Ok(match calls {
        DriverCalls::CopyPeer { src: (src, _), dst: (dst, _), bytes } => {
            DriverCalls::Copy(DriverAddress::Device(src), DriverAddress::Device(dst), bytes)
        }
        DriverCalls::CopyBatch(pairs, _) => DriverCalls::CopyBatch(pairs, BatchCall::Absent),
        DriverCalls::CopyBatchInPlace(kernels, pairs, stream) => {
            let list = stream.fixed_list(pairs)?;
            let address = list.address();
            lists.push(list);
            DriverCalls::CopyList(kernels, address)
        }
        other => other,
    })
}

fn no_stream() -> Error {
    Error::new(ErrorKind::Interrupted, "no stream to record on could be created")
}

/// # Errors
/// `Unsupported`, with the reason and what would be valid.
fn check_recordable(index: usize, operation: &Operation<'_>, device: DeviceId) -> Result<()> {
    let refuse = |reason: &str| {
        Err(Error::new(ErrorKind::Unsupported, format!("operation {index} cannot be recorded: {reason}")))
    };
    match operation {
        Operation::Prefetch { .. } | Operation::PrefetchToNode { .. } => {
            refuse("a graph cannot contain a prefetch; prefetch before the replay")
        }
        Operation::Replay { .. } => refuse("it is a recording itself; record its operations instead"),
        _ if operation.uses().iter().any(|(buffer, _)| buffer.place().kind == MemoryKind::Pageable) => {
            refuse("the driver copies pageable memory during the call; use pinned memory")
        }
        // Peer copies were checked when their calls were prepared.
        Operation::CopyPeer { .. } => Ok(()),
        _ => match operation
            .uses()
            .iter()
            .map(|(buffer, _)| buffer.place())
            .find(|place| !place.device.is_cpu() && place.device != device)
        {
            Some(place) => {
                refuse(&format!("a graph of {device} works on its own and the host's memory, not {place}"))
            }
            None => Ok(()),
        },
    }
}

/// Captures the driver calls: fork from the first stream, calls, join.
fn capture_on(
    context: &Context,
    first: &Stream,
    others: &[&Stream],
    work: &mut [(DriverCalls<'_>, &Step)],
) -> Result<Graph, DriverError> {
    let _bound = context.enter()?;
    let new_event = || Event::new(context, EventTiming::Disabled);
    // Created before the capture begins: events for the operations that another branch waits for, the fork and the joins.
    let events: Vec<Option<Event>> =
        work.iter().map(|(_, step)| step.is_awaited.then(new_event).transpose()).collect::<Result<_, _>>()?;
    let fork = if others.is_empty() { None } else { Some(new_event()?) };
    let joins: Vec<Event> = others.iter().map(|_| new_event()).collect::<Result<_, _>>()?;

    // SAFETY: these streams are private; only the recording is enqueued on them.
    let capture = unsafe { Capture::begin(first, CaptureMode::Relaxed) }?;
    if let Some(fork) = &fork {
        fork.record(first)?;
        others.iter().try_for_each(|other| other.wait_event(fork))?;
    }
    for ((calls, step), event) in work.iter_mut().zip(&events) {
        let stream =
            step.branch.checked_sub(1).and_then(|other| others.get(other)).map_or(first, |other| *other);
        for earlier in &step.after {
            if let Some(Some(event)) = events.get(*earlier) {
                stream.wait_event(event)?;
            }
        }
        let mut _captured = false;
        // SAFETY: the stream is being captured, so nothing runs: only launches use the memory, and the graph keeps its
        // buffers alive for them.
        unsafe { calls.make(stream.as_raw(), &mut _captured) }?;
        if let Some(event) = event {
            event.record(stream)?;
        }
    }
    for (other, join) in others.iter().zip(&joins) {
        join.record(*other)?;
        first.wait_event(join)?;
    }
    capture.end()
}
