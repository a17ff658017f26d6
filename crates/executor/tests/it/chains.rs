//! Many timelines, each reached by the task that awaited the one before: no wake is lost among them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{executor, gate::Gate, within_limit};

#[test]
fn chained_timelines_are_all_reached() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let place = move || format!("{} tasks ended", ended.load(Ordering::SeqCst));
    within_limit(place, move || {
        let executor = executor(2);
        for _ in 0..30 {
            let gates: Vec<_> = (0..=200).map(|_| Gate::new()).collect();
            let tasks: Vec<_> = gates
                .windows(2)
                .map(|pair| {
                    let (wait, next) = (executor.fence(&pair[0].fence(1)), Arc::clone(&pair[1]));
                    let count = Arc::clone(&count);
                    executor.spawn(async move {
                        wait.await.unwrap();
                        count.fetch_add(1, Ordering::SeqCst);
                        next.reach(1);
                    })
                })
                .collect();
            gates[0].reach(1);
            tasks.into_iter().for_each(|task| task.wait().unwrap());
        }
    });
}
