//! Promises about the records of operations that a backend may have: what each says that it did.

use super::{
    CheckResult, Failure, Verdict,
    context::{TestContext, TestMemory},
    profiling::{Attached, NO_SINKS, known, not_applicable},
};
use crate::{
    ErrorKind, FloatType, MemoryKind, Operation, OperationInfo, OperationKind, OperationSampling, Place,
    QueueLease, Result, StreamPriority, Timing, submit,
};

pub(super) fn kinds(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut any = false;
    for from in &context.memories {
        for to in &context.memories {
            let path = (*from, *to);
            for check in [in_place, cast, replay] {
                match check(context, &queue, path)? {
                    None => return not_applicable(NO_SINKS),
                    Some(is_supported) => any |= is_supported,
                }
            }
        }
    }
    for memory in context.memories.iter().filter(|memory| memory.place.kind == MemoryKind::Unified) {
        let buffer = context.buffer_of(*memory, &[7; 5000])?;
        let operation = Operation::Prefetch { buffer: &buffer, to: context.subject.device };
        let info = info(OperationKind::Prefetch, None, (5000, 1));
        any |= recorded(context, &queue, &operation, info)?.unwrap_or_default();
    }
    Ok(Verdict::passed_if(any, "the backend has none of these operations"))
}

fn info(kind: OperationKind, path: Option<(Place, Place)>, (bytes, pieces): (u64, u32)) -> OperationInfo {
    OperationInfo { kind, path, bytes, pieces }
}

/// Checks that the sink is passed an operation once, as what it is. Returns whether the backend has it; `None` if it has no sinks.
fn recorded(
    context: &TestContext<'_>,
    queue: &QueueLease,
    operation: &Operation<'_>,
    expected: OperationInfo,
) -> Result<Option<bool>, Failure> {
    let Some(sink) = Attached::new(context, OperationSampling::ALL)? else { return Ok(None) };
    match submit(&**queue, operation, Timing::Off) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Some(false)),
        Err(error) => return Err(error.into()),
    }
    let records = sink.take()?;
    let infos: Vec<_> = records.iter().map(|record| record.info).collect();
    ensure_eq!(infos, [expected], "what the sink was passed");
    for record in records {
        ensure_eq!(record.queue, queue.timeline().id(), "an operation's queue");
        ensure!(
            known(&record.begin, "a begin")? <= known(&record.end, "an end")?,
            "it ends before it begins"
        );
    }
    Ok(Some(true))
}

/// Returns whether kernels of the device do what `backend` says of it.
fn is_prepared(context: &TestContext<'_>) -> Result<bool, Failure> {
    match context.backend().prepare_in_place(context.subject.device) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn in_place(
    context: &TestContext<'_>,
    queue: &QueueLease,
    (from, to): (TestMemory, TestMemory),
) -> Result<Option<bool>, Failure> {
    let copier = context.backend().in_place_copier(from.place, to.place);
    if copier != Some(context.subject.device) || !is_prepared(context)? {
        return Ok(Some(false));
    }
    let (src, dst) = (context.buffer_of(from, &[3; 6000])?, context.buffer_of(to, &[4; 6000])?);
    let path = Some((from.place, to.place));
    let part = |at: usize| Ok((src.slice(at..at + 1000)?, dst.slice(5000 - at..6000 - at)?));
    let pairs = [0, 2000, 4000].map(part).into_iter().collect::<Result<Vec<_>>>()?;
    let list = Operation::CopyBatchInPlace { pairs: &pairs };
    let of_list = info(OperationKind::CopyKernel, path, (3000, 3));
    let one = Operation::CopyInPlace { src: &src, dst: &dst };
    let of_one = info(OperationKind::CopyKernel, path, (6000, 1));
    Ok(recorded(context, queue, &list, of_list)?
        .zip(recorded(context, queue, &one, of_one)?)
        .map(|(list, one)| list || one))
}

fn cast(
    context: &TestContext<'_>,
    queue: &QueueLease,
    (from, to): (TestMemory, TestMemory),
) -> Result<Option<bool>, Failure> {
    let caster = context.backend().caster(from.place, to.place);
    if caster != Some(context.subject.device) || !is_prepared(context)? {
        return Ok(Some(false));
    }
    let (src, dst) = (context.buffer_of(from, &[0; 4000])?, context.buffer_of(to, &[0; 2000])?);
    let operation = Operation::Cast { src: &src, from: FloatType::F32, dst: &dst, to: FloatType::Bf16 };
    let info = info(OperationKind::Cast, Some((from.place, to.place)), (2000, 1));
    recorded(context, queue, &operation, info)
}

fn replay(
    context: &TestContext<'_>,
    queue: &QueueLease,
    (from, to): (TestMemory, TestMemory),
) -> Result<Option<bool>, Failure> {
    if context.backend().copier(from.place, to.place) != Some(context.subject.device) {
        return Ok(Some(false));
    }
    let (src, dst) = (context.buffer_of(from, &[5; 3000])?, context.buffer_of(to, &[6; 3000])?);
    let copy = Operation::Copy { src: &src, dst: &dst };
    match context.backend().record(context.subject.device, StreamPriority::Normal, &[copy]) {
        Ok(recording) => {
            let operation = Operation::Replay { recorded: &*recording };
            recorded(context, queue, &operation, info(OperationKind::Replay, None, (0, 1)))
        }
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::MissingFunction) => {
            Ok(Some(false))
        }
        Err(error) => Err(error.into()),
    }
}
