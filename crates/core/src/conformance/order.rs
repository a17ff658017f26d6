//! Promises about order: whoever uses bytes comes after whoever used them before, on whatever queue.

use std::thread;

use super::{
    Failure, Found, Verdict,
    gate::Gate,
    lab::{self, Lab, joined, same},
};
use crate::{Operation, Pattern, RawBuffer, Result as CoreResult, Timing, submit};

/// Large enough that work on it takes a while on any device.
const LARGE: usize = 3_000_001;

fn copy(queue: &crate::QueueLease, src: &RawBuffer, dst: &RawBuffer) -> CoreResult<crate::Fence> {
    submit(&**queue, &Operation::Copy { src, dst }, Timing::Off)
}

/// The last bytes of a buffer: what is written last, and read quickly.
fn tail(buffer: &RawBuffer) -> CoreResult<RawBuffer> {
    buffer.slice(buffer.len().saturating_sub(1000)..)
}

pub(super) fn reader_after_writer(lab: &Lab<'_>) -> Found {
    let queues = lab.queues()?;
    let mut noise = lab.noise("reader after writer");
    let trips = lab.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = lab.size(LARGE);
        let (whole, end) = (lab.allocate(host, bytes)?, lab.allocate(host, 1000.min(bytes))?);
        let [middle, other] = [lab.allocate(there, bytes)?, lab.allocate(there, bytes)?];
        for round in 0..4 {
            let content = noise.bytes(bytes);
            let src = lab.buffer_of(host, &content)?;
            lab.put(&whole, &vec![0; bytes])?;
            lab.put(&end, &vec![0; end.len()])?;
            let [one, two, three] = [0, 1, 2].map(|next| &queues[(round + next) % queues.len()]);
            // The writer has something to do before: a reader that does not wait is early.
            copy(one, &src, &other)?;
            copy(one, &src, &middle)?;
            copy(two, &tail(&middle)?, &end)?;
            copy(three, &middle, &whole)?;
            // The views wait for their readers.
            let what = format!("read by another queue, {} → {} → back", host.place, there.place);
            same(&lab.get(&end)?, &content[bytes - end.len()..], &format!("the last bytes {what}"))?;
            same(&lab.get(&whole)?, &content, &format!("all bytes {what}"))?;
        }
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

pub(super) fn writer_after_reader(lab: &Lab<'_>) -> Found {
    let queues = lab.queues()?;
    let mut noise = lab.noise("writer after reader");
    let trips = lab.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = lab.size(LARGE);
        let (old, new) = (noise.bytes(bytes), noise.bytes(1000.min(bytes)));
        let middle = lab.allocate(there, bytes)?;
        let late = lab.buffer_of(host, &new)?;
        for round in 0..4 {
            lab.put(&middle, &old)?;
            let [first, second] = [lab.allocate(host, bytes)?, lab.allocate(host, bytes)?];
            let [one, two, three] = [0, 1, 2].map(|next| &queues[(round + next) % queues.len()]);
            copy(one, &middle, &first)?;
            copy(two, &middle, &second)?;
            copy(three, &late, &tail(&middle)?)?;
            let what = format!("{} → {}", there.place, host.place);
            same(&lab.get(&first)?, &old, &format!("the first reader before a writer, {what}"))?;
            same(&lab.get(&second)?, &old, &format!("the second reader before a writer, {what}"))?;
            let written = lab.get(&middle)?;
            same(&written[bytes - new.len()..], &new, &format!("what was written after readers, {what}"))?;
        }
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

pub(super) fn last_writer(lab: &Lab<'_>) -> Found {
    let queues = lab.queues()?;
    let mut noise = lab.noise("last writer");
    let trips = lab.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = lab.size(LARGE);
        let mut model = noise.bytes(bytes);
        let target = lab.buffer_of(there, &model)?;
        for _ in 0..3 {
            for (index, queue) in queues.iter().enumerate() {
                // The first is the largest and slowest; each later one writes over a part of it.
                let start = if index == 0 { 0 } else { noise.below(bytes) };
                let end = if index == 0 { bytes } else { noise.between(start, bytes) };
                let content = vec![noise.byte(); end - start];
                model[start..end].copy_from_slice(&content);
                copy(queue, &lab.buffer_of(host, &content)?, &target.slice(start..end)?)?;
            }
            lab.expect(&target, &model, &format!("{} written by several queues", there.place))?;
        }
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

pub(super) fn other_backends(lab: &Lab<'_>) -> Found {
    let trips = lab.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = lab.size(5000);
        let mut noise = lab.noise("other backends");
        let content = noise.bytes(bytes);
        let source = lab.buffer_of(host, &content)?;
        let between = lab.buffer_of(host, &vec![1; bytes])?;
        let middle = lab.buffer_of(there, &vec![2; bytes])?;
        let back = lab.buffer_of(host, &vec![3; bytes])?;
        let gate = Gate::closed(lab.subject.patience);
        let queues = lab.queues()?;
        submit(&gate, &Operation::Copy { src: &source, dst: &between }, Timing::Off)?;
        // A queue that cannot wait for a stranger's fence has its submitter wait: so it is submitted elsewhere.
        let outcome = thread::scope(|scope| {
            let work = || -> Result<(), Failure> {
                copy(&queues[0], &between, &middle)?;
                copy(&queues[1], &middle, &back)?;
                // Overwrites what the first reads.
                let fill = Operation::Fill { dst: &between, pattern: Pattern::U8(9) };
                match submit(&*queues[2], &fill, Timing::Off) {
                    Err(error) if error.kind() != crate::ErrorKind::Unsupported => Err(error.into()),
                    _ => Ok(()),
                }
            };
            let worker = scope.spawn(work);
            // Gives work that does not wait a chance to be seen: nothing here depends on how long this takes.
            lab::look_on(|| false);
            let early = between.try_read().is_ok();
            gate.open();
            let outcome = joined(worker);
            ensure!(!early, "bytes that another backend is writing can be viewed");
            outcome
        });
        outcome?;
        let what = format!("another backend's bytes {} → {} → back", host.place, there.place);
        lab.expect(&back, &content, &what)?;
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}
