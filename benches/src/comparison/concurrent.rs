//! Runs each variant in several threads at once.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::{Result, anyhow};

use crate::row::Summary;

/// Rounds before the first that counts.
const WARM_UP: usize = 2;

/// One variant of one thread; a call runs one round.
pub(crate) type Round<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Returns the seconds of a round of each variant, from the first thread's start to the last one's end.
///
/// `make` creates a thread's variants on that thread. A thread that fails still passes every barrier.
pub(crate) fn run_concurrently<'a>(
    threads: usize,
    variants: usize,
    rounds: usize,
    make: impl Fn(usize) -> Result<Vec<Round<'a>>> + Sync,
) -> Result<Vec<Summary>> {
    let (gate, awake) = (Barrier::new(threads), AtomicUsize::new(0));
    let work = |thread: usize| -> Result<Vec<Vec<(Instant, Instant)>>> {
        let mut made = make(thread);
        let (mut failed, mut rounds_begun) = (None, 0);
        let mut spans = vec![Vec::with_capacity(rounds); variants];
        for round in 0..WARM_UP + rounds {
            for turn in 0..variants {
                let variant = (round + turn) % variants;
                gate.wait();
                // A `Barrier` wakes threads one by one: the first could end before the last begins.
                rounds_begun += 1;
                spin_barrier(&awake, rounds_begun * threads);
                let begun = Instant::now();
                if let Some(variant) = made.as_mut().ok().and_then(|made| made.get_mut(variant))
                    && failed.is_none()
                {
                    failed = variant().err();
                }
                let span = (begun, Instant::now());
                if let Some(spans) = spans.get_mut(variant).filter(|_| round >= WARM_UP) {
                    spans.push(span);
                }
            }
        }
        made?;
        failed.map_or(Ok(spans), Err)
    };
    let outcomes: Vec<Result<_>> = thread::scope(|scope| {
        let work = &work;
        let spawned: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        spawned.into_iter().map(join).collect()
    });
    let spans = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    Ok((0..variants).map(|variant| Summary::of(&seconds(&spans, variant, rounds))).collect())
}

/// Spins until `everyone` calls were made since the beginning.
fn spin_barrier(awake: &AtomicUsize, everyone: usize) {
    awake.fetch_add(1, Ordering::AcqRel);
    let mut spins = 0_u32;
    while awake.load(Ordering::Acquire) < everyone {
        spins = spins.saturating_add(1);
        // With fewer processors than threads, others need this one.
        if spins > 2000 { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

fn seconds(spans: &[Vec<Vec<(Instant, Instant)>>], variant: usize, rounds: usize) -> Vec<f64> {
    let round = |round: usize| {
        let of_threads = || spans.iter().filter_map(|spans| spans.get(variant)?.get(round));
        let begun = of_threads().map(|span| span.0).min();
        let ended = of_threads().map(|span| span.1).max();
        begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).as_secs_f64())
    };
    (0..rounds).map(round).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[test]
    fn every_thread_runs_every_round() {
        let rounds = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let make = |_: usize| {
            let variant = |counter: &'static str| -> Round<'_> {
                let rounds = &rounds;
                Box::new(move || {
                    rounds[usize::from(counter == "b")].fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
            };
            Ok(vec![variant("a"), variant("b")])
        };
        assert_eq!(run_concurrently(3, 2, 4, make).unwrap().len(), 2);
        assert_eq!(rounds.map(AtomicUsize::into_inner), [3 * (4 + WARM_UP); 2]);
    }

    #[test]
    fn failing_thread_does_not_block_others() {
        let cannot_begin = |thread: usize| {
            ensure!(thread != 1, "thread 1 cannot begin");
            Ok(vec![Box::new(|| Ok(())) as Round<'_>])
        };
        assert!(run_concurrently(3, 1, 2, cannot_begin).unwrap_err().to_string().contains("cannot begin"));
        let fails_later = |thread: usize| {
            let mut left = 2;
            let round = move || {
                left -= i32::from(thread == 2);
                ensure!(left > 0, "thread 2 fails");
                Ok(())
            };
            Ok(vec![Box::new(round) as Round<'_>])
        };
        assert!(run_concurrently(3, 1, 5, fails_later).unwrap_err().to_string().contains("thread 2 fails"));
    }
}
