//! Random combinations of everything, from several threads, for several rounds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use transload_executor::{BlockingKey, yield_now};

use crate::{executor, gate::Gate, within_limit};

#[test]
fn random_tasks_fences_calls_and_panics_all_end() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 400;
    let ended = Arc::new(AtomicUsize::new(0));
    let reached = Arc::new(AtomicU64::new(0));
    let place = {
        let (ended, reached) = (Arc::clone(&ended), Arc::clone(&reached));
        move || {
            format!(
                "{} tasks ended, point {} reached",
                ended.load(Ordering::SeqCst),
                reached.load(Ordering::SeqCst)
            )
        }
    };
    within_limit(place, move || {
        for workers in [1, 2, 5] {
            ended.store(0, Ordering::SeqCst);
            let executor = executor(workers);
            let gates: [_; 3] = std::array::from_fn(|_| Gate::new());
            thread::scope(|scope| {
                for seed in 1..=THREADS {
                    let (executor, gates, ended) = (&executor, &gates, &ended);
                    let key = BlockingKey::new(2);
                    scope.spawn(move || {
                        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                        for _ in 0..ROUNDS {
                            state ^= state << 13;
                            state ^= state >> 7;
                            state ^= state << 17;
                            let kind = state % 7;
                            let wait =
                                executor.fence(&gates[(state % 3) as usize].fence(1 + (state >> 8) % ROUNDS));
                            let (ended, theirs, key) = (Arc::clone(ended), executor.clone(), key.clone());
                            let task = executor.spawn(async move {
                                if kind < 4 {
                                    wait.await.unwrap();
                                }
                                if kind % 2 == 0 {
                                    yield_now().await;
                                }
                                if kind == 3 {
                                    theirs.spawn_blocking(&key, thread::yield_now).await.unwrap();
                                }
                                ended.fetch_add(1, Ordering::SeqCst);
                                assert!(kind != 5, "on purpose");
                            });
                            if kind == 6 {
                                task.wait().unwrap();
                            }
                        }
                    });
                }
                let (gates, reached) = (&gates, &reached);
                scope.spawn(move || {
                    for point in 1..=ROUNDS {
                        reached.store(point, Ordering::SeqCst);
                        gates.iter().for_each(|gate| match point % 3 {
                            0 => gate.reach(point),
                            _ => gate.reach_silently(point),
                        });
                        // Sometimes long enough for workers to sleep.
                        (0..point % 50).for_each(|_| thread::yield_now());
                    }
                    gates.iter().for_each(|gate| gate.reach(ROUNDS));
                });
            });
            executor.drain().unwrap();
            assert_eq!(ended.load(Ordering::SeqCst) as u64, THREADS * ROUNDS);
        }
    });
}
