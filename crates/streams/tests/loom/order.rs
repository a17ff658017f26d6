//! Wakers in point order; needs no model.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Wake, Waker},
};

use crate::wakers::Wakers;

struct Counted(AtomicU64);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn wakers_are_taken_once_in_point_order() {
    let counts: Vec<_> = (0..6).map(|_| Arc::new(Counted(AtomicU64::new(0)))).collect();
    let wakers: Vec<Waker> = counts.iter().map(|counted| Waker::from(Arc::clone(counted))).collect();
    let mut waiting = Wakers::default();
    for (point, which) in [(3, 0), (9, 1), (3, 2), (1, 3), (3, 0), (7, 4), (9, 5), (3, 2)] {
        assert_eq!(waiting.has(point, &wakers[which]), waiting.add(point, wakers[which].clone()).is_some());
    }
    assert_eq!(waiting.first(), Some(1));
    let mut woken = Vec::new();
    let mut counted = |upto: u64, waiting: &mut Wakers| {
        waiting.take_reached(upto, &mut woken);
        woken.drain(..).for_each(Waker::wake);
        counts.iter().map(|counted| counted.0.load(Ordering::Relaxed)).collect::<Vec<_>>()
    };
    assert_eq!(counted(0, &mut waiting), [0; 6]);
    assert_eq!(counted(3, &mut waiting), [1, 0, 1, 1, 0, 0]);
    assert_eq!(counted(8, &mut waiting), [1, 0, 1, 1, 1, 0]);
    assert!(!waiting.is_empty());
    assert_eq!(counted(u64::MAX, &mut waiting), [1; 6]);
    assert!(waiting.is_empty() && waiting.first().is_none());
}
