//! Promises about optional features of a backend.

use std::cell::LazyCell;

use super::{
    CheckResult, Failure, Verdict,
    content::{SIZES, one_copy},
    context::{self, TestContext, refused, submit_and_wait},
    rows::one_batch,
};
use crate::{
    DeviceId, ErrorKind, FloatType, MemoryAdvice, MemoryKind, Operation, PeerAccess, Place, RawBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};

pub(super) fn prefetch(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut rng = context.rng("prefetch");
    let mut any = false;
    for memory in context.memories.iter().copied().filter(|memory| memory.place.kind == MemoryKind::Unified) {
        for bytes in [1, 5000, context.size(3_000_001)] {
            let content = rng.bytes(bytes);
            let buffer = context.buffer_of(memory, &content)?;
            for to in [context.subject.device, DeviceId::Cpu, context.subject.device] {
                let part = buffer.slice(rng.below(bytes)..)?;
                for buffer in [&buffer, &part] {
                    any |= submit_and_wait(&queue, &Operation::Prefetch { buffer, to })?.is_some();
                }
                context.expect(&buffer, &content, &format!("{bytes} bytes prefetched to {to}"))?;
            }
            match submit(&*queue, &Operation::PrefetchToNode { buffer: &buffer, node: None }, Timing::Off) {
                Ok(fence) => fence.wait()?,
                Err(error) => ensure!(
                    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::MissingFunction),
                    "a prefetch to the nearest node: {error:?}"
                ),
            }
            context.expect(&buffer, &content, &format!("{bytes} bytes prefetched to the nearest node"))?;
        }
        let buffer = context.buffer_of(memory, &[9; 4096])?;
        for advice in [
            MemoryAdvice::SetReadMostly,
            MemoryAdvice::UnsetReadMostly,
            MemoryAdvice::SetPreferredLocation(DeviceId::Cpu),
            MemoryAdvice::SetAccessedBy(context.subject.device),
            MemoryAdvice::UnsetAccessedBy(context.subject.device),
            MemoryAdvice::UnsetPreferredLocation,
        ] {
            if let Err(error) = context.backend().advise(&buffer, advice) {
                ensure!(error.kind() == ErrorKind::Unsupported, "{advice:?}: {error:?}");
            }
            context.expect(&buffer, &[9; 4096], &format!("memory after {advice:?}"))?;
        }
    }
    Ok(Verdict::passed_if(any, "the device prefetches no memory"))
}

pub(super) fn in_place(context: &TestContext<'_>) -> CheckResult {
    let mut rng = context.rng("in place");
    let mut any = false;
    for from in context.memories.iter().copied() {
        for to in context.memories.iter().copied() {
            let Some(copier) = context.backend().in_place_copier(from.place, to.place) else { continue };
            match context.backend().prepare_in_place(copier) {
                Ok(()) => any = true,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(Verdict::NotApplicable(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
            let backend = if copier.is_cpu() { &*context.subject.host } else { context.backend() };
            let queue = backend.lease_queue(copier, StreamPriority::High, WorkloadType::Memory)?;
            for bytes in SIZES.into_iter().map(|bytes| context.size(bytes)) {
                one_copy(context, &mut rng, (from, to), bytes, |src, dst| {
                    let done = submit_and_wait(&queue, &Operation::CopyInPlace { src, dst })?;
                    ensure!(done.is_some(), "the queue of the in-place copier answers Unsupported");
                    Ok(())
                })?;
            }
            for (count, most) in [(1, 70_000), (300, 700), (9, context.size(1_500_000))] {
                one_batch(context, &mut rng, (from, to), (count, most, 1), |pairs| {
                    Ok(submit_and_wait(&queue, &Operation::CopyBatchInPlace { pairs })?.is_some())
                })
                .and_then(|done| {
                    ensure!(done, "the queue of the in-place copier answers Unsupported to a batch");
                    Ok(())
                })?;
            }
        }
    }
    Ok(Verdict::passed_if(any, "no path has an in-place copier"))
}

pub(super) fn casts(context: &TestContext<'_>) -> CheckResult {
    /// Elements before the cast ones, which must not change, on either side.
    const BEFORE: usize = 3;
    // Once for all memories, if any are cast: the suite also runs unoptimised.
    let cases = LazyCell::new(|| {
        FloatType::ALL
            .into_iter()
            .flat_map(|ours| {
                let content = patterns(ours);
                FloatType::ALL.map(|theirs| {
                    let part = content.get(BEFORE * ours.size()..).unwrap_or_default();
                    let mut cast = vec![0; part.len() / ours.size() * theirs.size()];
                    ours.cast(part, theirs, &mut cast);
                    (ours, content.clone(), theirs, cast)
                })
            })
            .collect::<Vec<_>>()
    });
    let mut any = false;
    for (from, to) in
        context.memories.iter().flat_map(|from| context.memories.iter().map(move |to| (*from, *to)))
    {
        let Some(caster) = context.backend().caster(from.place, to.place) else { continue };
        match context.backend().prepare_in_place(caster) {
            Ok(()) => any = true,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Verdict::NotApplicable(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        let queue = context.backend().lease_queue(caster, StreamPriority::Normal, WorkloadType::Compute)?;
        for (ours, content, theirs, cast) in cases.iter() {
            let (src, elements) = (context.buffer_of(from, content)?, content.len() / ours.size());
            for count in [0, 1, 2, 257, elements - BEFORE] {
                let what = format!("{count} elements {} {ours} → {} {theirs}", from.place, to.place);
                let mut expected = vec![0xa5; (count + 2 * BEFORE) * theirs.size()];
                let dst = context.buffer_of(to, &expected)?;
                let part = BEFORE * ours.size()..(BEFORE + count) * ours.size();
                let range = BEFORE * theirs.size()..(BEFORE + count) * theirs.size();
                let (src, dst_part) = (src.slice(part)?, dst.slice(range.clone())?);
                let operation = Operation::Cast { src: &src, from: *ours, dst: &dst_part, to: *theirs };
                if ours == theirs {
                    refused(submit(&*queue, &operation, Timing::Off), ErrorKind::InvalidArgument, &what)?;
                } else {
                    let done = submit_and_wait(&queue, &operation)?;
                    ensure!(done.is_some(), "{what}: the queue of the caster answers Unsupported");
                    expected[range.clone()].copy_from_slice(&cast[..range.len()]);
                }
                context.expect(&dst, &expected, &what)?;
            }
        }
    }
    Ok(Verdict::passed_if(any, "the device casts nothing"))
}

/// Every value of a type of 16 bits; of `f32`, those next to ties of both.
fn patterns(float: FloatType) -> Vec<u8> {
    const LOW: [u16; 10] = [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001];
    let high = 0..=u16::MAX;
    match float {
        FloatType::F32 => high
            .flat_map(|high| LOW.map(|low| u32::from(high) << 16 | u32::from(low)))
            .flat_map(u32::to_le_bytes)
            .collect(),
        _ => high.flat_map(u16::to_le_bytes).collect(),
    }
}

pub(super) fn peers(context: &TestContext<'_>) -> CheckResult {
    let here = context.subject.device;
    let others: Vec<_> = context.backend().devices().into_iter().filter(|info| info.id != here).collect();
    let mut any = false;
    for other in &others {
        let there = other.id;
        if context.backend().peer_access(here, there)? == PeerAccess::Unavailable {
            let answer = context.backend().enable_peer_access(here, there);
            refused(answer, ErrorKind::Unsupported, &format!("access of {here} to {there}"))?;
            continue;
        }
        for (from, to) in [(here, there), (there, here)] {
            context.backend().enable_peer_access(from, to)?;
            context.backend().enable_peer_access(from, to)?;
            let access = context.backend().peer_access(from, to)?;
            ensure!(access == PeerAccess::Enabled, "access of {from} to {to} was enabled and is {access:?}");
        }
        any = true;
        for bytes in [1, 4097, context.size(3_000_001)] {
            for (from, to) in [(here, there), (there, here)] {
                peer_copy(context, from, to, bytes)?;
                peer_lists(context, from, to, bytes)?;
            }
        }
    }
    let reason = if others.is_empty() { "there is one device" } else { "no other device is reached" };
    Ok(Verdict::passed_if(any, reason))
}

fn peer_copy(context: &TestContext<'_>, from: DeviceId, to: DeviceId, bytes: usize) -> Result<(), Failure> {
    let content = context.rng("peers").bytes(bytes);
    let allocate = |device| context.backend().allocate(device, MemoryKind::Device, bytes);
    let (src, dst) = (allocate(from)?, allocate(to)?);
    moved(context, from, &src, Some(&content))?;
    for device in [from, to] {
        moved(context, to, &dst, Some(&vec![0; bytes]))?;
        let queue = context.backend().lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
        let done = submit_and_wait(&queue, &Operation::CopyPeer { src: &src, dst: &dst })?;
        ensure!(done.is_some(), "{from} and {to} reach each other, but a queue of {device} does not copy");
        let found = moved(context, to, &dst, None)?;
        context::same(&found, &content, &format!("{bytes} bytes {from} → {to} by {device}"))?;
    }
    Ok(())
}

/// Every piece of a list arrives, by copies and by a kernel, if the queues of the devices have one.
fn peer_lists(context: &TestContext<'_>, from: DeviceId, to: DeviceId, bytes: usize) -> Result<(), Failure> {
    let content = context.rng("lists of peers").bytes(bytes);
    let allocate = |device| context.backend().allocate(device, MemoryKind::Device, bytes);
    let (src, dst) = (allocate(from)?, allocate(to)?);
    moved(context, from, &src, Some(&content))?;
    let piece = (bytes / 7).max(1);
    let starts: Vec<usize> = (0..bytes).step_by(piece).collect();
    let pair = |start: &usize| -> Result<_, Failure> {
        let range = *start..(*start + piece).min(bytes);
        Ok((src.slice(range.clone())?, dst.slice(range)?))
    };
    // Backwards, so that none follows another.
    let pairs = starts.iter().rev().map(pair).collect::<Result<Vec<_>, _>>()?;
    for device in [from, to] {
        let own = Place::new(device, MemoryKind::Device);
        let has_kernel = context.backend().in_place_copier(own, own) == Some(device);
        let operations = [
            (Operation::CopyBatch { pairs: &pairs }, true),
            (Operation::CopyBatchInPlace { pairs: &pairs }, has_kernel),
        ];
        for (operation, is_supported) in operations {
            moved(context, to, &dst, Some(&vec![0; bytes]))?;
            let queue =
                context.backend().lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
            let done = submit_and_wait(&queue, &operation)?;
            ensure!(
                done.is_some() == is_supported,
                "{from} and {to} reach each other; a queue of {device} takes {operation:?}: {}",
                done.is_some()
            );
            if is_supported {
                let found = moved(context, to, &dst, None)?;
                context::same(
                    &found,
                    &content,
                    &format!("a list of {bytes} bytes {from} → {to} by {device}"),
                )?;
            }
        }
    }
    Ok(())
}

/// Writes or reads the content of another device's memory.
fn moved(
    context: &TestContext<'_>,
    device: DeviceId,
    buffer: &RawBuffer,
    put: Option<&[u8]>,
) -> Result<Vec<u8>, Failure> {
    let queue = context.backend().lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
    let Some(memory) = context.host_memories().next() else { fail!("no host memory") };
    let host = context.allocate(memory, buffer.len())?;
    match put {
        Some(content) => {
            context.put(&host, content)?;
            submit(&*queue, &Operation::Copy { src: &host, dst: buffer }, Timing::Off)?.wait()?;
        }
        None => submit(&*queue, &Operation::Copy { src: buffer, dst: &host }, Timing::Off)?.wait()?,
    }
    context.get(&host)
}

pub(super) fn sharing(context: &TestContext<'_>) -> CheckResult {
    let mut rng = context.rng("sharing");
    let bytes = context.size(10_001);
    let mut any = false;
    for memory in context.memories.iter().copied() {
        let (content, later) = (rng.bytes(bytes), rng.bytes(bytes));
        let buffer = context.buffer_of(memory, &content)?;
        let mut expected = &content;
        match context.backend().share(&buffer, context.subject.device) {
            Ok(shared) => {
                any = true;
                let same = shared.buffer.id() == buffer.id();
                ensure!(
                    same != shared.copied,
                    "of {} the same buffer is shared: {same}, a copy: {}",
                    memory.place,
                    shared.copied
                );
                context.expect(&shared.buffer, expected, &format!("a share of {}", memory.place))?;
                if !shared.copied && shared.buffer.is_writable() {
                    context.put(&shared.buffer, &later)?;
                    expected = &later;
                    context.expect(
                        &buffer,
                        expected,
                        &format!("{} that was written by a share", memory.place),
                    )?;
                }
            }
            Err(error) => {
                ensure!(error.kind() == ErrorKind::Unsupported, "sharing {}: {error:?}", memory.place);
            }
        }
        if memory.place.kind == MemoryKind::Pageable {
            match context.backend().register(&buffer) {
                Ok(pinned) => {
                    any = true;
                    ensure!(pinned.len() == buffer.len(), "registered {} bytes", pinned.len());
                    context.expect(&pinned, expected, "registered memory")?;
                    if pinned.is_writable() {
                        expected = if std::ptr::eq(expected, &content) { &later } else { &content };
                        context.put(&pinned, expected)?;
                    }
                    // Nothing of it is in use where the buffer is read.
                    drop(pinned);
                }
                Err(error) => {
                    ensure!(
                        error.kind() == ErrorKind::Unsupported,
                        "registering {}: {error:?}",
                        memory.place
                    );
                }
            }
        }
        context.expect(&buffer, expected, "memory that was shared")?;
    }
    Ok(Verdict::passed_if(any, "nothing is shared or registered"))
}
