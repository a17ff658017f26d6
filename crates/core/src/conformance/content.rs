//! Promises about the bytes of copies and fills.

use super::{
    CheckResult, Failure, Verdict,
    context::{TestContext, TestMemory, refused, submit_and_wait},
    rng::TestRng,
};
use crate::{ErrorKind, Operation, Pattern, Timing, submit};

/// Sizes around the limits at which a backend may switch methods.
pub(super) const SIZES: [usize; 12] =
    [1, 2, 3, 5, 64, 257, 4093, 65_536, 65_539, 1_048_573, 2_097_155, 5_242_881];

/// Guard bytes around a range, which must not change.
const GUARD: usize = 67;

pub(super) fn copies(context: &TestContext<'_>) -> CheckResult {
    let queues = context.queues()?;
    let mut rng = context.rng("copies");
    for (from, to) in context.paths() {
        for bytes in SIZES.into_iter().map(|bytes| context.size(bytes)) {
            let queue = &queues[rng.below(queues.len())];
            one_copy(context, &mut rng, (from, to), bytes, |src, dst| {
                // A planner asks before, and would choose another way.
                context.backend().check_copy(Some(src), Some(dst))?;
                let done = submit_and_wait(queue, &Operation::Copy { src, dst })?;
                ensure!(done.is_some(), "the copier's queue answers Unsupported");
                Ok(())
            })?;
        }
    }
    Ok(Verdict::Passed)
}

/// One copy between unaligned ranges, and the bytes around them.
pub(super) fn one_copy(
    context: &TestContext<'_>,
    rng: &mut TestRng,
    (from, to): (TestMemory, TestMemory),
    bytes: usize,
    copy: impl FnOnce(&crate::RawBuffer, &crate::RawBuffer) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (ahead, before) = (rng.below(GUARD), rng.below(GUARD));
    let what = format!("{bytes} bytes {} [{ahead}..] → {} [{before}..]", from.place, to.place);
    let there = rng.bytes(ahead + bytes + GUARD);
    let mut here = rng.bytes(before + bytes + GUARD);
    let src = context.buffer_of(from, &there)?;
    let dst = context.buffer_of(to, &here)?;
    copy(&src.slice(ahead..ahead + bytes)?, &dst.slice(before..before + bytes)?).map_err(|failure| {
        let details = format!("{what}: {}", failure.details);
        Failure { details, ..failure }
    })?;
    here[before..before + bytes].copy_from_slice(&there[ahead..ahead + bytes]);
    context.expect(&dst, &here, &format!("the destination of {what}"))?;
    context.expect(&src, &there, &format!("the source of {what}"))
}

pub(super) fn empty(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    for (from, to) in context.paths() {
        let (src, dst) = (context.buffer_of(from, &[1; 9])?, context.buffer_of(to, &[2; 9])?);
        for at in [0, 4, 9] {
            let (none, nothing) = (src.slice(at..at)?, dst.slice(9 - at..9 - at)?);
            let done = submit_and_wait(&queue, &Operation::Copy { src: &none, dst: &nothing })?;
            ensure!(done.is_some(), "an empty copy {} → {} is Unsupported", from.place, to.place);
            submit_and_wait(&queue, &Operation::Fill { dst: &nothing, pattern: Pattern::U8(7) })?;
            submit_and_wait(&queue, &Operation::CopyBatch { pairs: &[(none, nothing)] })?;
        }
        submit_and_wait(&queue, &Operation::CopyBatch { pairs: &[] })?;
        context.expect(&src, &[1; 9], "the source of empty copies")?;
        context.expect(&dst, &[2; 9], "the destination of empty copies")?;
    }
    Ok(Verdict::Passed)
}

pub(super) fn within(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut rng = context.rng("within");
    let mut any = false;
    for memory in context.memories.iter().copied().filter(|memory| queue.can_copy(memory.place, memory.place))
    {
        any = true;
        for bytes in [1, 333, 70_001, context.size(2_500_003)] {
            let mut content = rng.bytes(3 * bytes);
            let buffer = context.buffer_of(memory, &content)?;
            // Upwards and downwards: the ranges touch, but do not overlap.
            for (src, dst) in [(0, bytes), (2 * bytes, bytes), (bytes, 0)] {
                let (from, to) = (buffer.slice(src..src + bytes)?, buffer.slice(dst..dst + bytes)?);
                submit_and_wait(&queue, &Operation::Copy { src: &from, dst: &to })?;
                content.copy_within(src..src + bytes, dst);
            }
            context.expect(&buffer, &content, &format!("thrice {bytes} bytes within {}", memory.place))?;
        }
    }
    Ok(Verdict::passed_if(any, "no memory is copied within itself"))
}

pub(super) fn fills(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut rng = context.rng("fills");
    let mut any = false;
    for memory in context.memories.iter().copied() {
        for patterns in [1, 3, 15, 17, 1001, context.size(2_200_000) / 4] {
            for pattern in patterns_of(&mut rng) {
                // At a multiple of the pattern's width: nothing else is promised.
                let width = pattern.width();
                let (before, bytes) = (16 + rng.below(5) * width, patterns * width);
                let mut content = rng.bytes(before + bytes + GUARD);
                let dst = context.buffer_of(memory, &content)?;
                let range = before..before + bytes;
                let operation = Operation::Fill { dst: &dst.slice(range.clone())?, pattern };
                if submit_and_wait(&queue, &operation)?.is_some() {
                    any = true;
                    fill(&mut content[range], pattern);
                }
                context.expect(
                    &dst,
                    &content,
                    &format!("{bytes} bytes of {} filled with {pattern:?}", memory.place),
                )?;
            }
        }
        unaligned(context, &mut rng, memory)?;
    }
    Ok(Verdict::passed_if(any, "the queues fill nothing"))
}

/// One pattern of each width.
pub(super) fn patterns_of(rng: &mut TestRng) -> [Pattern; 5] {
    let wide = u128::from(rng.next()) << 64 | u128::from(rng.next());
    let (byte, half, word, long) = (wide as u8, wide as u16, wide as u32, wide as u64);
    [Pattern::U8(byte), Pattern::U16(half), Pattern::U32(word), Pattern::U64(long), Pattern::U128(wide)]
}

/// Checks that a fill that does not begin at a multiple of the pattern's width is refused.
fn unaligned(context: &TestContext<'_>, rng: &mut TestRng, memory: TestMemory) -> Result<(), Failure> {
    let queue = context.queue()?;
    for pattern in patterns_of(rng).into_iter().skip(1) {
        let content = rng.bytes(128);
        let dst = context.buffer_of(memory, &content)?;
        for start in [3, pattern.width() / 2, pattern.width() * 3 / 2] {
            let operation = Operation::Fill { dst: &dst.slice(start..start + 96)?, pattern };
            let what = format!("a fill of {} with {pattern:?} from byte {start} on", memory.place);
            refused(submit(&*queue, &operation, Timing::Off), ErrorKind::InvalidArgument, &what)?;
        }
        let operation = Operation::Fill { dst: &dst.slice(..95)?, pattern };
        let what = format!("a fill of 95 bytes of {} with {pattern:?}", memory.place);
        refused(submit(&*queue, &operation, Timing::Off), ErrorKind::InvalidArgument, &what)?;
        context.expect(&dst, &content, &what)?;
    }
    Ok(())
}

/// Returns the content after a fill.
pub(super) fn fill(range: &mut [u8], pattern: Pattern) {
    let repeated = pattern.repeated();
    range.chunks_mut(16).for_each(|chunk| chunk.copy_from_slice(&repeated[..chunk.len()]));
}
