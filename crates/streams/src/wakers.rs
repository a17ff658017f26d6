//! Tasks that wait for points of a stream, in the order of the points.

use std::{collections::VecDeque, task::Waker};

/// Points are mostly waited for in their order, thousands at once: adding one and taking those that are over costs no search
/// through the others, and nothing is allocated once there was room.
#[derive(Default)]
pub(crate) struct Wakers {
    /// Sorted by point.
    waiting: VecDeque<(u64, Waker)>,
}

impl Wakers {
    /// None, with room for so many.
    pub(crate) fn with_room(tasks: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(tasks) }
    }

    /// Keeps a waker for a point, once.
    pub(crate) fn add(&mut self, point: u64, waker: &Waker) {
        let first = self.waiting.partition_point(|(at, _)| *at < point);
        let of_the_point = self.waiting.iter().skip(first).take_while(|(at, _)| *at == point);
        let mut known = 0;
        for (_, other) in of_the_point {
            if other.will_wake(waker) {
                return;
            }
            known += 1;
        }
        self.waiting.insert(first + known, (point, waker.clone()));
    }

    /// The first point that someone waits for.
    pub(crate) fn first(&self) -> Option<u64> {
        self.waiting.front().map(|(point, _)| *point)
    }

    /// Moves those whose points are reached.
    pub(crate) fn take_reached(&mut self, reached: u64, into: &mut Vec<Waker>) {
        let over = self.waiting.partition_point(|(at, _)| *at <= reached);
        into.extend(self.waiting.drain(..over).map(|(_, waker)| waker));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        task::Wake,
    };

    use super::*;

    struct Counted(AtomicU64);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakers_come_out_by_their_points_whatever_order_they_came_in_and_each_once() {
        let counts: Vec<_> = (0..6).map(|_| Arc::new(Counted(AtomicU64::new(0)))).collect();
        let wakers: Vec<Waker> = counts.iter().map(|counted| Waker::from(Arc::clone(counted))).collect();
        let mut waiting = Wakers::default();
        for (point, which) in [(3, 0), (9, 1), (3, 2), (1, 3), (3, 0), (7, 4), (9, 5)] {
            waiting.add(point, &wakers[which]);
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
}
