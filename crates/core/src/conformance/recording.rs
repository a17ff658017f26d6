//! Promises about recordings, for backends that make any.

use std::sync::Arc;

use super::{
    Failure, Found, Verdict,
    lab::{self, Lab, Spot},
};
use crate::{Access, ErrorKind, Operation, QueueLease, RawBuffer, Recorded, StreamPriority, Timing, submit};

pub(super) fn recordings(lab: &Lab<'_>) -> Found {
    let queues = lab.queues()?;
    let mut any = false;
    for trip in lab.round_trips() {
        for bytes in [1, 4097, lab.size(3_000_001)] {
            any |= there_and_back(lab, &queues, trip, bytes)?;
        }
    }
    if any {
        let nothing = lab.backend().record(lab.subject.device, StreamPriority::Normal, &[]);
        lab::refused(nothing, ErrorKind::InvalidArgument, "a recording of nothing")?;
    }
    Ok(Verdict::passed_if(any, "the backend records nothing"))
}

/// Up, within the device, and down, as one; answers whether the backend records such a thing.
fn there_and_back(
    lab: &Lab<'_>,
    queues: &[QueueLease],
    (host, there): (Spot, Spot),
    bytes: usize,
) -> Result<bool, Failure> {
    let mut noise = lab.noise("recordings");
    let (source, back) = (lab.buffer_of(host, &vec![1; bytes])?, lab.buffer_of(host, &vec![2; bytes])?);
    let between = lab.allocate(there, 2 * bytes)?;
    let (left, right) = (between.slice(..bytes)?, between.slice(bytes..)?);
    let operations = [
        Operation::Copy { src: &source, dst: &left },
        Operation::Copy { src: &left, dst: &right },
        Operation::Copy { src: &right, dst: &back },
    ];
    let recorded = lab.backend().record(lab.subject.device, StreamPriority::Normal, &operations);
    let recorded = match recorded {
        Ok(recorded) => recorded,
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::MissingFunction) => {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    lab.expect(&back, &vec![2; bytes], "memory that a recording is to write, before any replay")?;
    covers(&*recorded, &source, Access::Read)?;
    covers(&*recorded, &between, Access::Write)?;
    covers(&*recorded, &back, Access::Write)?;
    for (turn, queue) in queues.iter().chain(queues).enumerate() {
        let content = noise.bytes(bytes);
        lab.put(&source, &content)?;
        submit(&**queue, &Operation::Replay { recorded: &*recorded }, Timing::Off)?;
        lab.expect(
            &back,
            &content,
            &format!("{bytes} bytes {} → {} replayed, turn {turn}", host.place, there.place),
        )?;
    }
    let content = noise.bytes(bytes);
    lab.put(&source, &content)?;
    dropped_in_flight(queues, recorded)?;
    drop((source, between, left, right));
    lab.expect(&back, &content, "the last replay of a recording that was dropped in flight")?;
    Ok(true)
}

fn dropped_in_flight(queues: &[QueueLease], recorded: Arc<dyn Recorded>) -> Result<(), Failure> {
    let Some(queue) = queues.first() else { fail!("no queue") };
    submit(&**queue, &Operation::Replay { recorded: &*recorded }, Timing::Off)?;
    Ok(())
}

/// That every byte of a buffer is among the recording's uses, with this access.
fn covers(recorded: &dyn Recorded, buffer: &RawBuffer, access: Access) -> Result<(), Failure> {
    let of_it = recorded.uses().iter().filter(|(used, with)| *with == access && used.overlaps(buffer));
    let bytes: usize = of_it.map(|(used, _)| used.len()).sum();
    ensure!(bytes == buffer.len(), "a recording uses {bytes} bytes of {buffer:?} by {access:?}");
    Ok(())
}
