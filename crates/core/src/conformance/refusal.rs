//! Promises about refused operations, which must not change anything.

use super::{
    CheckResult, Failure, Verdict,
    context::{TestContext, refused, submit_and_wait},
};
use crate::{ErrorKind, Operation, Pattern, Pitched, RawBuffer, Timing, submit};

pub(super) fn validation(context: &TestContext<'_>) -> CheckResult {
    use ErrorKind::{InvalidArgument, OutOfRange, Overlap};
    let queue = context.queue()?;
    let mut rng = context.rng("validation");
    for (from, to) in context.paths() {
        let (there, here) = (rng.bytes(100), rng.bytes(100));
        let (src, dst) = (context.buffer_of(from, &there)?, context.buffer_of(to, &here)?);
        for range in [(0, 101), (101, 101), (7, 6), (usize::MAX, usize::MAX), (1, usize::MAX)] {
            refused(dst.slice(range.0..range.1), OutOfRange, &format!("the slice {range:?} of 100 bytes"))?;
        }
        let refuse = |operation: Operation<'_>, kind| {
            let what = format!("{operation:?}");
            refused(submit(&*queue, &operation, Timing::Off), kind, &what)
        };
        let (shorter, low, high) = (src.slice(..99)?, dst.slice(..60)?, dst.slice(40..)?);
        refuse(Operation::Copy { src: &shorter, dst: &dst }, InvalidArgument)?;
        refuse(Operation::Copy { src: &low, dst: &high }, Overlap)?;
        let pairs = [(src.clone(), dst.clone()), (shorter, dst.clone())];
        refuse(Operation::CopyBatch { pairs: &pairs }, InvalidArgument)?;
        refuse(Operation::CopyBatchInPlace { pairs: &pairs }, InvalidArgument)?;
        let pairs = [(src.slice(..60)?, low), (src.slice(40..)?, high)];
        refuse(Operation::CopyBatch { pairs: &pairs }, Overlap)?;
        refuse(Operation::CopyBatchInPlace { pairs: &pairs }, Overlap)?;
        let rows = |width, height, src_pitch, dst_pitch| Pitched::new(width, height, src_pitch, dst_pitch);
        for rows in [
            rows(10, 11, 10, 10),
            rows(10, 2, 9, 10),
            rows(10, 2, 10, 91),
            rows(0, 1, 1, 1),
            rows(2, usize::MAX, usize::MAX, 2),
            rows(10, 2, 10, 10).planes(2, 90, 50),
            rows(10, 2, 10, 10).planes(2, 50, 90),
            rows(10, 2, 10, 10).planes(usize::MAX, usize::MAX, 50),
            rows(10, 2, 10, 10).planes(0, 50, 50),
        ] {
            refuse(Operation::CopyPitched { src: &src, dst: &dst, rows }, OutOfRange)?;
        }
        let overlapping = rows(10, 2, 10, 20).planes(2, 0, 29);
        refuse(Operation::CopyPitched { src: &src, dst: &dst, rows: overlapping }, Overlap)?;
        refuse(Operation::Fill { dst: &dst.slice(..99)?, pattern: Pattern::U16(1) }, InvalidArgument)?;
        refuse(Operation::Fill { dst: &dst.slice(..98)?, pattern: Pattern::U32(1) }, InvalidArgument)?;
        context.expect(&src, &there, "the source of refused operations")?;
        context.expect(&dst, &here, "the destination of refused operations")?;
    }
    Ok(Verdict::Passed)
}

pub(super) fn unsupported(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut any = false;
    for from in context.memories.iter().copied() {
        for to in context.memories.iter().copied() {
            let (there, here) = ([4; 96], [5; 96]);
            let (src, dst) = (context.buffer_of(from, &there)?, context.buffer_of(to, &here)?);
            let mut refuse = |operation: Operation<'_>| {
                any = true;
                let what = format!("{operation:?}");
                refused(submit(&*queue, &operation, Timing::Off), ErrorKind::Unsupported, &what)?;
                at_rest(context, &src, &there)?;
                at_rest(context, &dst, &here)
            };
            if !queue.can_copy(from.place, to.place) {
                let rows = Pitched::new(8, 4, 16, 24);
                refuse(Operation::Copy { src: &src, dst: &dst })?;
                refuse(Operation::CopyPitched { src: &src, dst: &dst, rows })?;
                refuse(Operation::CopyBatch { pairs: &[(src.clone(), dst.clone())] })?;
            }
            if from.place.device.is_cpu() || to.place.device.is_cpu() {
                refuse(Operation::CopyPeer { src: &src, dst: &dst })?;
            }
            if to.place.device.is_cpu() {
                refuse(Operation::Prefetch { buffer: &dst, to: context.subject.device })?;
                refuse(Operation::PrefetchToNode { buffer: &dst, node: None })?;
            }
            // Between two kinds of host memory no copier is reported, but a queue may support it; if so,
            // fine.
            if context.backend().in_place_copier(from.place, to.place).is_none() {
                let pairs = [(src.clone(), dst.clone())];
                let mut expected = &here;
                for operation in [
                    Operation::CopyInPlace { src: &src, dst: &dst },
                    Operation::CopyBatchInPlace { pairs: &pairs },
                ] {
                    let done = submit_and_wait(&queue, &operation)?;
                    ensure!(
                        done.is_none() || from.place.device == to.place.device,
                        "in place without a copier"
                    );
                    expected = if done.is_some() { &there } else { expected };
                    context.expect(&dst, expected, "a copy in place without a copier")?;
                }
                context.expect(&src, &there, "the source of a copy in place")?;
            }
        }
    }
    Ok(Verdict::passed_if(any, "the queues do everything"))
}

/// Checks that nothing was enqueued on a buffer: its content is unchanged, and nothing blocks it.
fn at_rest(context: &TestContext<'_>, buffer: &RawBuffer, content: &[u8]) -> Result<(), Failure> {
    if buffer.host_address().is_some() {
        ensure!(buffer.try_write().is_ok(), "a refused operation keeps its buffers busy");
    }
    context.expect(buffer, content, "a buffer of a refused operation")
}
