//! Promises about the bytes of copies and fills.

use super::{
    Failure, Found, Verdict,
    lab::{Lab, Spot, perform, refused},
    noise::Noise,
};
use crate::{ErrorKind, Operation, Pattern, Timing, submit};

/// Sizes around whatever a backend may treat differently.
pub(super) const SIZES: [usize; 12] =
    [1, 2, 3, 5, 64, 257, 4093, 65_536, 65_539, 1_048_573, 2_097_155, 5_242_881];

/// Bytes around a range that nobody may touch.
const GUARD: usize = 67;

pub(super) fn copies(lab: &Lab<'_>) -> Found {
    let queues = lab.queues()?;
    let mut noise = lab.noise("copies");
    for (from, to) in lab.paths() {
        for bytes in SIZES.into_iter().map(|bytes| lab.size(bytes)) {
            let queue = &queues[noise.below(queues.len())];
            one_copy(lab, &mut noise, (from, to), bytes, |src, dst| {
                let done = perform(queue, &Operation::Copy { src, dst })?;
                ensure!(done.is_some(), "the copier's queue answers Unsupported");
                Ok(())
            })?;
        }
    }
    Ok(Verdict::Passed)
}

/// One copy between odd ranges, and everything around them.
pub(super) fn one_copy(
    lab: &Lab<'_>,
    noise: &mut Noise,
    (from, to): (Spot, Spot),
    bytes: usize,
    copy: impl FnOnce(&crate::RawBuffer, &crate::RawBuffer) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (ahead, before) = (noise.below(GUARD), noise.below(GUARD));
    let what = format!("{bytes} bytes {} [{ahead}..] → {} [{before}..]", from.place, to.place);
    let there = noise.bytes(ahead + bytes + GUARD);
    let mut here = noise.bytes(before + bytes + GUARD);
    let src = lab.buffer_of(from, &there)?;
    let dst = lab.buffer_of(to, &here)?;
    copy(&src.slice(ahead..ahead + bytes)?, &dst.slice(before..before + bytes)?).map_err(|failure| {
        let details = format!("{what}: {}", failure.details);
        Failure { details, ..failure }
    })?;
    here[before..before + bytes].copy_from_slice(&there[ahead..ahead + bytes]);
    lab.expect(&dst, &here, &format!("the destination of {what}"))?;
    lab.expect(&src, &there, &format!("the source of {what}"))
}

pub(super) fn empty(lab: &Lab<'_>) -> Found {
    let queue = lab.queue()?;
    for (from, to) in lab.paths() {
        let (src, dst) = (lab.buffer_of(from, &[1; 9])?, lab.buffer_of(to, &[2; 9])?);
        for at in [0, 4, 9] {
            let (none, nothing) = (src.slice(at..at)?, dst.slice(9 - at..9 - at)?);
            let done = perform(&queue, &Operation::Copy { src: &none, dst: &nothing })?;
            ensure!(done.is_some(), "an empty copy {} → {} is Unsupported", from.place, to.place);
            perform(&queue, &Operation::Fill { dst: &nothing, pattern: Pattern::U8(7) })?;
            perform(&queue, &Operation::CopyBatch { pairs: &[(none, nothing)] })?;
        }
        perform(&queue, &Operation::CopyBatch { pairs: &[] })?;
        lab.expect(&src, &[1; 9], "the source of empty copies")?;
        lab.expect(&dst, &[2; 9], "the destination of empty copies")?;
    }
    Ok(Verdict::Passed)
}

pub(super) fn within(lab: &Lab<'_>) -> Found {
    let queue = lab.queue()?;
    let mut noise = lab.noise("within");
    let mut any = false;
    for spot in lab.spots.iter().copied().filter(|spot| queue.can_copy(spot.place, spot.place)) {
        any = true;
        for bytes in [1, 333, 70_001, lab.size(2_500_003)] {
            let mut content = noise.bytes(3 * bytes);
            let buffer = lab.buffer_of(spot, &content)?;
            // Up, and down again: the ranges meet, but do not overlap.
            for (src, dst) in [(0, bytes), (2 * bytes, bytes), (bytes, 0)] {
                let (from, to) = (buffer.slice(src..src + bytes)?, buffer.slice(dst..dst + bytes)?);
                perform(&queue, &Operation::Copy { src: &from, dst: &to })?;
                content.copy_within(src..src + bytes, dst);
            }
            lab.expect(&buffer, &content, &format!("thrice {bytes} bytes within {}", spot.place))?;
        }
    }
    Ok(Verdict::passed_if(any, "no memory is copied within itself"))
}

pub(super) fn fills(lab: &Lab<'_>) -> Found {
    let queue = lab.queue()?;
    let mut noise = lab.noise("fills");
    let mut any = false;
    for spot in lab.spots.iter().copied() {
        for patterns in [1, 3, 15, 17, 1001, lab.size(2_200_000) / 4] {
            for pattern in patterns_of(&mut noise) {
                // At a multiple of the pattern's width: more is not promised.
                let width = pattern.width();
                let (before, bytes) = (16 + noise.below(5) * width, patterns * width);
                let mut content = noise.bytes(before + bytes + GUARD);
                let dst = lab.buffer_of(spot, &content)?;
                let range = before..before + bytes;
                let operation = Operation::Fill { dst: &dst.slice(range.clone())?, pattern };
                if perform(&queue, &operation)?.is_some() {
                    any = true;
                    fill(&mut content[range], pattern);
                }
                lab.expect(
                    &dst,
                    &content,
                    &format!("{bytes} bytes of {} filled with {pattern:?}", spot.place),
                )?;
            }
        }
        unaligned(lab, &mut noise, spot)?;
    }
    Ok(Verdict::passed_if(any, "the queues fill nothing"))
}

/// One pattern of each width.
pub(super) fn patterns_of(noise: &mut Noise) -> [Pattern; 5] {
    let wide = u128::from(noise.next()) << 64 | u128::from(noise.next());
    let (byte, half, word, long) = (wide as u8, wide as u16, wide as u32, wide as u64);
    [Pattern::U8(byte), Pattern::U16(half), Pattern::U32(word), Pattern::U64(long), Pattern::U128(wide)]
}

/// A fill of whole patterns that does not begin at a multiple of the pattern's width is refused.
fn unaligned(lab: &Lab<'_>, noise: &mut Noise, spot: Spot) -> Result<(), Failure> {
    let queue = lab.queue()?;
    for pattern in patterns_of(noise).into_iter().skip(1) {
        let content = noise.bytes(128);
        let dst = lab.buffer_of(spot, &content)?;
        for start in [3, pattern.width() / 2, pattern.width() * 3 / 2] {
            let operation = Operation::Fill { dst: &dst.slice(start..start + 96)?, pattern };
            let what = format!("a fill of {} with {pattern:?} from byte {start} on", spot.place);
            refused(submit(&*queue, &operation, Timing::Off), ErrorKind::InvalidArgument, &what)?;
        }
        let operation = Operation::Fill { dst: &dst.slice(..95)?, pattern };
        let what = format!("a fill of 95 bytes of {} with {pattern:?}", spot.place);
        refused(submit(&*queue, &operation, Timing::Off), ErrorKind::InvalidArgument, &what)?;
        lab.expect(&dst, &content, &what)?;
    }
    Ok(())
}

/// What a fill leaves.
pub(super) fn fill(range: &mut [u8], pattern: Pattern) {
    let repeated = pattern.repeated();
    range.chunks_mut(16).for_each(|chunk| chunk.copy_from_slice(&repeated[..chunk.len()]));
}
