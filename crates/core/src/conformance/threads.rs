//! Promises about concurrent use from any thread.

use std::thread;

use super::{
    CheckResult, Failure, Verdict,
    context::{TestContext, joined},
    rng::TestRng,
};
use crate::{ErrorKind, Operation, Pattern, RawBuffer, Timing, submit};

const THREADS: usize = 12;
/// Many on the first path, a few on every other one.
const ROUNDS: usize = 100;
const FEWER: usize = 15;
/// A thread's bytes of each shared buffer; not a multiple of any block size.
const PART: usize = 6007;

pub(super) fn threads(context: &TestContext<'_>) -> CheckResult {
    let mut rng = context.rng("threads");
    let trips = context.round_trips();
    for (number, (host, there)) in trips.iter().copied().enumerate() {
        let rounds = if number == 0 { ROUNDS } else { FEWER };
        let content = rng.bytes(THREADS * PART);
        let src = context.buffer_of(host, &content)?;
        let (middle, back) =
            (context.allocate(there, content.len())?, context.allocate(host, content.len())?);
        let shared = context.allocate(there, 1 << 16)?;
        let outcome = thread::scope(|scope| {
            let mut workers = Vec::new();
            for index in 0..THREADS {
                let buffers = [&src, &middle, &back, &shared];
                let (context, seed) = (context, rng.next());
                workers.push(scope.spawn(move || one_thread(context, (index, rounds), buffers, seed)));
            }
            // All threads are joined, even after a failure.
            workers.into_iter().map(joined).fold(Ok(()), Result::and)
        });
        outcome?;
        let what = format!("bytes of {THREADS} threads {} → {} → back", host.place, there.place);
        context.expect(&back, &content, &what)?;
        let left = context.get(&shared)?;
        ensure!(left.iter().all(|byte| *byte == left[0]), "{what}: writers of one range are mixed up");
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

fn one_thread(
    context: &TestContext<'_>,
    (index, rounds): (usize, usize),
    [src, middle, back, shared]: [&RawBuffer; 4],
    seed: u64,
) -> Result<(), Failure> {
    let mut rng = TestRng::new(seed, "thread");
    let own = index * PART..(index + 1) * PART;
    let [src, middle, back] = [src.slice(own.clone())?, middle.slice(own.clone())?, back.slice(own)?];
    let expected = context.get(&src)?;
    for round in 0..rounds {
        let queues = [context.queue()?, context.queue()?];
        let fill = Operation::Fill { dst: shared, pattern: Pattern::U8(rng.byte()) };
        match submit(&*queues[0], &fill, Timing::Off) {
            Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error.into()),
            // Not supported: then the content is the same everywhere.
            Err(_) if index == 0 && round == 0 => context.put(shared, &vec![0; shared.len()])?,
            _ => {}
        }
        if rng.chance(4) {
            // Other content in between; an unsupported fill must not change it.
            let fill = Operation::Fill { dst: &middle, pattern: Pattern::U8(0) };
            let _unsupported = submit(&*queues[1], &fill, Timing::Off);
        }
        submit(&*queues[0], &Operation::Copy { src: &src, dst: &middle }, Timing::Off)?;
        let fence = submit(&*queues[1], &Operation::Copy { src: &middle, dst: &back }, Timing::Off)?;
        if rng.chance(10) {
            fence.wait()?;
            context.expect(&back, &expected, &format!("round {round} of thread {index}"))?;
        }
        if rng.chance(10) {
            // Allocated and dropped in flight, concurrently with everything else.
            let spare = context.backend().allocate(context.subject.device, middle.place().kind, 100);
            if let Ok(spare) = spare {
                let fill = Operation::Fill { dst: &spare, pattern: Pattern::U8(1) };
                let _unsupported = submit(&*queues[0], &fill, Timing::Off);
            }
        }
    }
    Ok(())
}
