//! Promises about recordings, for backends that support them.

use std::sync::Arc;

use super::{
    CheckResult, Failure, Verdict,
    context::{self, TestContext, TestMemory},
};
use crate::{Access, ErrorKind, Operation, QueueLease, RawBuffer, Recording, StreamPriority, Timing, submit};

pub(super) fn recordings(context: &TestContext<'_>) -> CheckResult {
    let queues = context.queues()?;
    let mut any = false;
    for trip in context.round_trips() {
        for bytes in [1, 4097, context.size(3_000_001)] {
            any |= there_and_back(context, &queues, trip, bytes)?;
        }
    }
    if any {
        let nothing = context.backend().record(context.subject.device, StreamPriority::Normal, &[]);
        context::refused(nothing, ErrorKind::InvalidArgument, "a recording of nothing")?;
    }
    Ok(Verdict::passed_if(any, "the backend records nothing"))
}

/// Copies up, within the device and down in one recording; returns whether the backend supports that.
fn there_and_back(
    context: &TestContext<'_>,
    queues: &[QueueLease],
    (host, there): (TestMemory, TestMemory),
    bytes: usize,
) -> Result<bool, Failure> {
    let mut rng = context.rng("recordings");
    let (source, back) =
        (context.buffer_of(host, &vec![1; bytes])?, context.buffer_of(host, &vec![2; bytes])?);
    let between = context.allocate(there, 2 * bytes)?;
    let (left, right) = (between.slice(..bytes)?, between.slice(bytes..)?);
    let operations = [
        Operation::Copy { src: &source, dst: &left },
        Operation::Copy { src: &left, dst: &right },
        Operation::Copy { src: &right, dst: &back },
    ];
    let recorded = context.backend().record(context.subject.device, StreamPriority::Normal, &operations);
    let recorded = match recorded {
        Ok(recorded) => recorded,
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::MissingFunction) => {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    context.expect(&back, &vec![2; bytes], "memory that a recording is to write, before any replay")?;
    covers(&*recorded, &source, Access::Read)?;
    covers(&*recorded, &between, Access::Write)?;
    covers(&*recorded, &back, Access::Write)?;
    for (turn, queue) in queues.iter().chain(queues).enumerate() {
        let content = rng.bytes(bytes);
        context.put(&source, &content)?;
        submit(&**queue, &Operation::Replay { recorded: &*recorded }, Timing::Off)?;
        context.expect(
            &back,
            &content,
            &format!("{bytes} bytes {} → {} replayed, turn {turn}", host.place, there.place),
        )?;
    }
    let content = rng.bytes(bytes);
    context.put(&source, &content)?;
    dropped_in_flight(queues, recorded)?;
    drop((source, between, left, right));
    context.expect(&back, &content, "the last replay of a recording that was dropped in flight")?;
    Ok(true)
}

fn dropped_in_flight(queues: &[QueueLease], recorded: Arc<dyn Recording>) -> Result<(), Failure> {
    let Some(queue) = queues.first() else { fail!("no queue") };
    submit(&**queue, &Operation::Replay { recorded: &*recorded }, Timing::Off)?;
    Ok(())
}

/// Checks that every byte of a buffer is among the recording's uses, with this access.
fn covers(recorded: &dyn Recording, buffer: &RawBuffer, access: Access) -> Result<(), Failure> {
    let of_it = recorded.uses().iter().filter(|(used, with)| *with == access && used.overlaps(buffer));
    let bytes: usize = of_it.map(|(used, _)| used.len()).sum();
    ensure!(bytes == buffer.len(), "a recording uses {bytes} bytes of {buffer:?} by {access:?}");
    Ok(())
}
