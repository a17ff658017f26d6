//! Promises about order: a user of bytes comes after earlier conflicting users, on whatever queue.

use std::thread;

use super::{
    CheckResult, Failure, Verdict,
    context::{self, TestContext, joined, same},
    gate::Gate,
};
use crate::{Operation, Pattern, RawBuffer, Result as CoreResult, Timing, submit};

/// Large enough that work on it takes a while on any device.
const LARGE: usize = 3_000_001;

fn copy(queue: &crate::QueueLease, src: &RawBuffer, dst: &RawBuffer) -> CoreResult<crate::Fence> {
    submit(&**queue, &Operation::Copy { src, dst }, Timing::Off)
}

/// The last bytes of a buffer: written last, and quick to read.
fn tail(buffer: &RawBuffer) -> CoreResult<RawBuffer> {
    buffer.slice(buffer.len().saturating_sub(1000)..)
}

pub(super) fn reader_after_writer(context: &TestContext<'_>) -> CheckResult {
    let queues = context.queues()?;
    let mut rng = context.rng("reader after writer");
    let trips = context.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = context.size(LARGE);
        let (whole, end) = (context.allocate(host, bytes)?, context.allocate(host, 1000.min(bytes))?);
        let [middle, other] = [context.allocate(there, bytes)?, context.allocate(there, bytes)?];
        for round in 0..queues.len() {
            let content = rng.bytes(bytes);
            let src = context.buffer_of(host, &content)?;
            context.put(&whole, &vec![0; bytes])?;
            context.put(&end, &vec![0; end.len()])?;
            let [one, two, three] = [0, 1, 2].map(|next| &queues[(round + next) % queues.len()]);
            // The writer has earlier work to do, so a reader that does not wait is early.
            copy(one, &src, &other)?;
            copy(one, &src, &middle)?;
            copy(two, &tail(&middle)?, &end)?;
            copy(three, &middle, &whole)?;
            // The views wait for their readers.
            let what = format!("read by another queue, {} → {} → back", host.place, there.place);
            same(&context.get(&end)?, &content[bytes - end.len()..], &format!("the last bytes {what}"))?;
            same(&context.get(&whole)?, &content, &format!("all bytes {what}"))?;
        }
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

pub(super) fn writer_after_reader(context: &TestContext<'_>) -> CheckResult {
    let queues = context.queues()?;
    let mut rng = context.rng("writer after reader");
    let trips = context.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = context.size(LARGE);
        let (old, new) = (rng.bytes(bytes), rng.bytes(1000.min(bytes)));
        let middle = context.allocate(there, bytes)?;
        let late = context.buffer_of(host, &new)?;
        for round in 0..queues.len() {
            context.put(&middle, &old)?;
            let [first, second] = [context.allocate(host, bytes)?, context.allocate(host, bytes)?];
            let [one, two, three] = [0, 1, 2].map(|next| &queues[(round + next) % queues.len()]);
            copy(one, &middle, &first)?;
            copy(two, &middle, &second)?;
            copy(three, &late, &tail(&middle)?)?;
            let what = format!("{} → {}", there.place, host.place);
            same(&context.get(&first)?, &old, &format!("the first reader before a writer, {what}"))?;
            same(&context.get(&second)?, &old, &format!("the second reader before a writer, {what}"))?;
            let written = context.get(&middle)?;
            same(&written[bytes - new.len()..], &new, &format!("what was written after readers, {what}"))?;
        }
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

pub(super) fn last_writer(context: &TestContext<'_>) -> CheckResult {
    let queues = context.queues()?;
    let mut rng = context.rng("last writer");
    let trips = context.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = context.size(LARGE);
        let mut model = rng.bytes(bytes);
        let target = context.buffer_of(there, &model)?;
        for _ in 0..3 {
            for (index, queue) in queues.iter().enumerate() {
                // The first is the largest and slowest; each later one overwrites a part of it.
                let start = if index == 0 { 0 } else { rng.below(bytes) };
                let end = if index == 0 { bytes } else { rng.between(start, bytes) };
                let content = vec![rng.byte(); end - start];
                model[start..end].copy_from_slice(&content);
                copy(queue, &context.buffer_of(host, &content)?, &target.slice(start..end)?)?;
            }
            context.expect(&target, &model, &format!("{} written by several queues", there.place))?;
        }
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

pub(super) fn other_backends(context: &TestContext<'_>) -> CheckResult {
    let trips = context.round_trips();
    for (host, there) in trips.iter().copied() {
        let bytes = context.size(5000);
        let mut rng = context.rng("other backends");
        let content = rng.bytes(bytes);
        let source = context.buffer_of(host, &content)?;
        let between = context.buffer_of(host, &vec![1; bytes])?;
        let middle = context.buffer_of(there, &vec![2; bytes])?;
        let back = context.buffer_of(host, &vec![3; bytes])?;
        let gate = Gate::closed(context.subject.wake_timeout);
        let queues = context.queues()?;
        submit(&gate, &Operation::Copy { src: &source, dst: &between }, Timing::Off)?;
        // A queue that cannot wait for another backend's fence blocks its submitter, so another thread
        // submits.
        let outcome = thread::scope(|scope| {
            let work = || -> Result<(), Failure> {
                copy(&queues[0], &between, &middle)?;
                copy(&queues[1], &middle, &back)?;
                // Overwrites what the first operation reads.
                let fill = Operation::Fill { dst: &between, pattern: Pattern::U8(9) };
                match submit(&*queues[2], &fill, Timing::Off) {
                    Err(error) if error.kind() != crate::ErrorKind::Unsupported => Err(error.into()),
                    _ => Ok(()),
                }
            };
            let worker = scope.spawn(work);
            // Gives work that does not wait a chance to be noticed; the check does not depend on the
            // duration.
            context::watch_briefly(|| false);
            let early = between.try_read().is_ok();
            gate.open();
            let outcome = joined(worker);
            ensure!(!early, "bytes that another backend is writing can be viewed");
            outcome
        });
        outcome?;
        let what = format!("another backend's bytes {} → {} → back", host.place, there.place);
        context.expect(&back, &content, &what)?;
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}
