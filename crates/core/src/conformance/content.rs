//! Promises about the bytes of copies and fills.

use super::{
    Failure, Subject, Verdict,
    lab::{Lab, Spot, perform, refused},
    noise::Noise,
};
use crate::{ErrorKind, Operation, Pattern, Timing, submit};

/// Sizes around whatever a backend may treat differently.
pub(super) const SIZES: [usize; 12] =
    [1, 2, 3, 5, 64, 257, 4093, 65_536, 65_539, 1_048_573, 2_097_155, 5_242_881];

/// Bytes around a range that nobody may touch.
const GUARD: usize = 67;

pub(super) fn copies(subject: &Subject) -> Result<Verdict, Failure> {
    let lab = Lab::new(subject)?;
    let queues = lab.queues()?;
    let mut noise = lab.noise("copies");
    for (from, to) in lab.paths() {
        for bytes in SIZES.into_iter().map(|bytes| lab.size(bytes)) {
            let queue = &queues[noise.below(queues.len())];
            one_copy(&lab, &mut noise, (from, to), bytes, |src, dst| {
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

pub(super) fn empty(subject: &Subject) -> Result<Verdict, Failure> {
    let lab = Lab::new(subject)?;
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

pub(super) fn within(subject: &Subject) -> Result<Verdict, Failure> {
    let lab = Lab::new(subject)?;
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

pub(super) fn fills(subject: &Subject) -> Result<Verdict, Failure> {
    let lab = Lab::new(subject)?;
    let queue = lab.queue()?;
    let mut noise = lab.noise("fills");
    let mut any = false;
    for spot in lab.spots.iter().copied() {
        for patterns in [1, 3, 1001, lab.size(2_200_000) / 4] {
            let word = u32::from_le_bytes([noise.byte(), noise.byte(), noise.byte(), noise.byte()]);
            let [low, high, ..] = word.to_le_bytes();
            let half = u16::from_le_bytes([low, high]);
            for pattern in [Pattern::U8(low), Pattern::U16(half), Pattern::U32(word)] {
                // Aligned to the pattern: more is not promised. 16 bytes are every allocation's own alignment.
                let (before, bytes) = (16 + noise.below(3) * 4, patterns * pattern.width());
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
        unaligned(&lab, &mut noise, spot)?;
    }
    Ok(Verdict::passed_if(any, "the queues fill nothing"))
}

/// A fill of whole patterns from an odd byte on is refused.
fn unaligned(lab: &Lab<'_>, noise: &mut Noise, spot: Spot) -> Result<(), Failure> {
    let queue = lab.queue()?;
    for pattern in [Pattern::U16(0x1234), Pattern::U32(0x89AB_CDEF)] {
        let content = noise.bytes(64);
        let dst = lab.buffer_of(spot, &content)?;
        let operation = Operation::Fill { dst: &dst.slice(3..27)?, pattern };
        let what = format!("a fill of {} with {pattern:?} from byte 3 on", spot.place);
        refused(submit(&*queue, &operation, Timing::Off), ErrorKind::InvalidArgument, &what)?;
        lab.expect(&dst, &content, &what)?;
    }
    Ok(())
}

/// What a fill leaves.
pub(super) fn fill(range: &mut [u8], pattern: Pattern) {
    let mut tile =
        |bytes: &[u8]| range.chunks_mut(bytes.len()).for_each(|chunk| chunk.copy_from_slice(bytes));
    match pattern {
        Pattern::U8(value) => tile(&[value]),
        Pattern::U16(value) => tile(&value.to_ne_bytes()),
        Pattern::U32(value) => tile(&value.to_ne_bytes()),
    }
}
