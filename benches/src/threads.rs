//! Several threads that submit and wait concurrently.

use std::{sync::Barrier, thread, time::Instant};

use anyhow::{Context as _, Result, anyhow};
use transload_core::TransferPath;

use crate::{
    case::{Case, Side, Testbed},
    content::Content,
    grid::{self, Point},
    row::{Row, Summary},
    rows::{Bench, is_verified},
};

const THREADS: usize = 8;

/// Start and end of one round of one side in a thread.
type Span = (Instant, Instant);

/// A thread's result: the spans of both sides, and whether its bytes were correct.
type Outcome = Result<([Vec<Span>; 2], bool)>;

impl Bench<'_> {
    /// Measures the transfers per second of eight threads together.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn threads(&mut self, path: TransferPath, point: Point) -> Result<Vec<Row>> {
        let rounds = self.options.repetitions.map_or(30, |given| given as usize);
        let transfers = if self.options.quick { 100 } else { 500 };
        let mut cases = (0..THREADS)
            .map(|_| Case::new(self.manager, self.testbed, path, point))
            .collect::<Result<Vec<_>>>()?;
        let method = cases.first().context("no case")?.ends.submit().wait()?.method.name();
        let starts: Vec<usize> = (0..2 * THREADS).map(|_| self.content.draw()).collect();
        let (testbed, content) = (self.testbed, &*self.content);
        let gate = Barrier::new(THREADS);
        let outcomes: Vec<Outcome> = thread::scope(|scope| {
            let threads: Vec<_> = cases
                .iter_mut()
                .zip(starts.chunks(2))
                .map(|(case, starts)| {
                    let gate = &gate;
                    scope.spawn(move || work(case, testbed, content, starts, gate, rounds, transfers))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                .collect()
        });
        let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
        let verified = outcomes.iter().all(|(_, verified)| *verified);
        let rates = |side: Side| -> Summary {
            let rate = |round: usize| {
                let spans = outcomes.iter().filter_map(|(spans, _)| spans.get(side as usize)?.get(round));
                let begun = spans.clone().map(|span| span.0).min();
                let ended = spans.map(|span| span.1).max();
                let seconds = begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).as_secs_f64());
                (THREADS * transfers) as f64 / seconds.max(1e-9)
            };
            Summary::of(&(0..rounds).map(rate).collect::<Vec<_>>())
        };
        let row = Row::new(
            format!("threads-{THREADS}/{}/{method}/{}", grid::name(path), grid::size(point)),
            format!("{path}, {THREADS} threads"),
            method,
            point.bytes as u64,
            "transfers/s",
            rates(Side::Ours),
        );
        Ok(vec![
            row.against(testbed.reference_name(), rates(Side::Reference))
                .obtained(testbed.is_simulated(), verified),
        ])
    }
}

fn work(
    case: &mut Case<'_>,
    testbed: &dyn Testbed,
    content: &Content,
    starts: &[usize],
    gate: &Barrier,
    rounds: usize,
    transfers: usize,
) -> Outcome {
    // A thread that fails still passes every barrier.
    let mut outcome = testbed.bind();
    for (side, start) in [Side::Ours, Side::Reference].into_iter().zip(starts) {
        outcome = outcome.and_then(|()| case.prepare(side, content, *start));
    }
    let mut spans = [Vec::with_capacity(rounds), Vec::with_capacity(rounds)];
    for round in 0..rounds {
        let order =
            if round % 2 == 0 { [Side::Ours, Side::Reference] } else { [Side::Reference, Side::Ours] };
        for side in order {
            gate.wait();
            let begun = Instant::now();
            if outcome.is_ok() {
                outcome = (0..transfers).try_for_each(|_| match side {
                    Side::Ours => Ok(case.ends.submit().wait().map(|_report| ())?),
                    Side::Reference => case.reference.submit().and_then(|()| case.reference.finish()),
                });
            }
            if let Some(spans) = spans.get_mut(side as usize) {
                spans.push((begun, Instant::now()));
            }
        }
    }
    outcome?;
    let verified =
        [Side::Ours, Side::Reference].into_iter().all(|side| is_verified(case.check(side, content)));
    Ok((spans, verified))
}
