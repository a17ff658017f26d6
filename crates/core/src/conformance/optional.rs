//! Promises about what a backend may or may not offer.

use super::{
    Failure, Found, Verdict,
    content::{SIZES, one_copy},
    lab::{self, Lab, perform, refused},
};
use crate::{
    DeviceId, ErrorKind, MemoryAdvice, MemoryKind, Operation, PeerAccess, RawBuffer, StreamPriority, Timing,
    WorkloadType, submit,
};

pub(super) fn prefetch(lab: &Lab<'_>) -> Found {
    let queue = lab.queue()?;
    let mut noise = lab.noise("prefetch");
    let mut any = false;
    for spot in lab.spots.iter().copied().filter(|spot| spot.place.kind == MemoryKind::Unified) {
        for bytes in [1, 5000, lab.size(3_000_001)] {
            let content = noise.bytes(bytes);
            let buffer = lab.buffer_of(spot, &content)?;
            for to in [lab.subject.device, DeviceId::Cpu, lab.subject.device] {
                let part = buffer.slice(noise.below(bytes)..)?;
                for buffer in [&buffer, &part] {
                    any |= perform(&queue, &Operation::Prefetch { buffer, to })?.is_some();
                }
                lab.expect(&buffer, &content, &format!("{bytes} bytes prefetched to {to}"))?;
            }
            match submit(&*queue, &Operation::PrefetchToNode { buffer: &buffer, node: None }, Timing::Off) {
                Ok(fence) => fence.wait()?,
                Err(error) => ensure!(
                    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::MissingFunction),
                    "a prefetch to the nearest node: {error:?}"
                ),
            }
            lab.expect(&buffer, &content, &format!("{bytes} bytes prefetched to the nearest node"))?;
        }
        let buffer = lab.buffer_of(spot, &[9; 4096])?;
        for advice in [
            MemoryAdvice::SetReadMostly,
            MemoryAdvice::UnsetReadMostly,
            MemoryAdvice::SetPreferredLocation(DeviceId::Cpu),
            MemoryAdvice::SetAccessedBy(lab.subject.device),
            MemoryAdvice::UnsetAccessedBy(lab.subject.device),
            MemoryAdvice::UnsetPreferredLocation,
        ] {
            if let Err(error) = lab.backend().advise(&buffer, advice) {
                ensure!(error.kind() == ErrorKind::Unsupported, "{advice:?}: {error:?}");
            }
            lab.expect(&buffer, &[9; 4096], &format!("memory after {advice:?}"))?;
        }
    }
    Ok(Verdict::passed_if(any, "the device prefetches no memory"))
}

pub(super) fn in_place(lab: &Lab<'_>) -> Found {
    let mut noise = lab.noise("in place");
    let mut any = false;
    for from in lab.spots.iter().copied() {
        for to in lab.spots.iter().copied() {
            let Some(copier) = lab.backend().in_place_copier(from.place, to.place) else { continue };
            match lab.backend().prepare_in_place(copier) {
                Ok(()) => any = true,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(Verdict::NotApplicable(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
            let queue = lab.backend().lease_queue(copier, StreamPriority::High, WorkloadType::Memory)?;
            for bytes in SIZES.into_iter().map(|bytes| lab.size(bytes)) {
                one_copy(lab, &mut noise, (from, to), bytes, |src, dst| {
                    let done = perform(&queue, &Operation::CopyInPlace { src, dst })?;
                    ensure!(done.is_some(), "the queue of the in-place copier answers Unsupported");
                    Ok(())
                })?;
            }
        }
    }
    Ok(Verdict::passed_if(any, "no path has an in-place copier"))
}

pub(super) fn peers(lab: &Lab<'_>) -> Found {
    let here = lab.subject.device;
    let others: Vec<_> = lab.backend().devices().into_iter().filter(|info| info.id != here).collect();
    let mut any = false;
    for other in &others {
        let there = other.id;
        if lab.backend().peer_access(here, there)? == PeerAccess::Unavailable {
            let answer = lab.backend().enable_peer_access(here, there);
            refused(answer, ErrorKind::Unsupported, &format!("access of {here} to {there}"))?;
            continue;
        }
        for (from, to) in [(here, there), (there, here)] {
            lab.backend().enable_peer_access(from, to)?;
            lab.backend().enable_peer_access(from, to)?;
            let access = lab.backend().peer_access(from, to)?;
            ensure!(access == PeerAccess::Enabled, "access of {from} to {to} was enabled and is {access:?}");
        }
        any = true;
        for bytes in [1, 4097, lab.size(3_000_001)] {
            for (from, to) in [(here, there), (there, here)] {
                peer_copy(lab, from, to, bytes)?;
            }
        }
    }
    let reason = if others.is_empty() { "there is one device" } else { "no other device is reached" };
    Ok(Verdict::passed_if(any, reason))
}

fn peer_copy(lab: &Lab<'_>, from: DeviceId, to: DeviceId, bytes: usize) -> Result<(), Failure> {
    let content = lab.noise("peers").bytes(bytes);
    let allocate = |device| lab.backend().allocate(device, MemoryKind::Device, bytes);
    let (src, dst) = (allocate(from)?, allocate(to)?);
    moved(lab, from, &src, Some(&content))?;
    for device in [from, to] {
        moved(lab, to, &dst, Some(&vec![0; bytes]))?;
        let queue = lab.backend().lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
        let done = perform(&queue, &Operation::CopyPeer { src: &src, dst: &dst })?;
        ensure!(done.is_some(), "{from} and {to} reach each other, but a queue of {device} does not copy");
        let found = moved(lab, to, &dst, None)?;
        lab::same(&found, &content, &format!("{bytes} bytes {from} → {to} by {device}"))?;
    }
    Ok(())
}

/// Puts content into another device's memory or gets it from there.
fn moved(
    lab: &Lab<'_>,
    device: DeviceId,
    buffer: &RawBuffer,
    put: Option<&[u8]>,
) -> Result<Vec<u8>, Failure> {
    let queue = lab.backend().lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
    let Some(spot) = lab.host_spots().next() else { fail!("no host memory") };
    let host = lab.allocate(spot, buffer.len())?;
    match put {
        Some(content) => {
            lab.put(&host, content)?;
            submit(&*queue, &Operation::Copy { src: &host, dst: buffer }, Timing::Off)?.wait()?;
        }
        None => submit(&*queue, &Operation::Copy { src: buffer, dst: &host }, Timing::Off)?.wait()?,
    }
    lab.get(&host)
}

pub(super) fn sharing(lab: &Lab<'_>) -> Found {
    let content = lab.noise("sharing").bytes(10_001);
    let mut any = false;
    for spot in lab.spots.iter().copied() {
        let buffer = lab.buffer_of(spot, &content)?;
        match lab.backend().share(&buffer, lab.subject.device) {
            Ok(shared) => {
                any = true;
                let same = shared.buffer.id() == buffer.id();
                ensure!(!(same && shared.copied), "{} is the same buffer and called a copy", spot.place);
                lab.expect(&shared.buffer, &content, &format!("a share of {}", spot.place))?;
            }
            Err(error) => {
                ensure!(error.kind() == ErrorKind::Unsupported, "sharing {}: {error:?}", spot.place);
            }
        }
        if spot.place.kind == MemoryKind::Pageable {
            match lab.backend().register(&buffer) {
                Ok(pinned) => {
                    any = true;
                    ensure!(pinned.len() == buffer.len(), "registered {} bytes", pinned.len());
                    lab.expect(&pinned, &content, "registered memory")?;
                }
                Err(error) => {
                    ensure!(error.kind() == ErrorKind::Unsupported, "registering {}: {error:?}", spot.place);
                }
            }
        }
        lab.expect(&buffer, &content, "memory that was shared")?;
    }
    Ok(Verdict::passed_if(any, "nothing is shared or registered"))
}
