//! The pool's places: readers, growth and shrinking at the same time.

use loom::thread;

use crate::{
    slots::Slots,
    sync::{Arc, AtomicU64, Ordering},
};

/// A stream that knows whether it is destroyed.
struct Stream<'a>(&'a Counters);

#[derive(Default)]
struct Counters {
    made: AtomicU64,
    gone: AtomicU64,
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, Ordering::Relaxed);
    }
}

/// What all threads of a model share; it lives as long as the process, so that threads may refer to it.
fn shared(places: usize) -> (&'static Counters, Arc<Slots<Stream<'static>>>) {
    (Box::leak(Box::default()), Arc::new(Slots::new(places)))
}

fn make(counters: &'static Counters) -> Arc<Stream<'static>> {
    counters.made.fetch_add(1, Ordering::Relaxed);
    Arc::new(Stream(counters))
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(check);
}

/// Leases what there is, uses it, and gives it back.
fn lease(slots: &Slots<Stream<'static>>) {
    let leased = {
        let inside = slots.enter();
        (0..2).find_map(|index| inside.look(index, Arc::clone))
    };
    // Outside, only the lease keeps it.
    if let Some(stream) = leased {
        let (made, gone) = (stream.0.made.load(Ordering::Relaxed), stream.0.gone.load(Ordering::Relaxed));
        assert!(gone < made, "a leased stream is alive");
    }
}

#[test]
fn a_stream_is_retired_only_while_nobody_looks_or_holds_it() {
    model(|| {
        let (counters, slots) = shared(1);
        slots.put(1, &make(counters));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || lease(&slots))
            })
            .collect();
        let taken = slots.take(0);
        if let Some(stream) = &taken {
            assert_eq!(Arc::strong_count(stream), 1, "whoever takes it has it alone");
        }
        let was_taken = taken.is_some();
        drop(taken);
        for reader in readers {
            // One that stays may be out of sight for the moment in which it is looked at.
            reader.join().unwrap();
        }
        assert_eq!(counters.gone.load(Ordering::Relaxed), u64::from(was_taken));
    });
}

#[test]
fn a_place_is_used_again_while_readers_come_and_go() {
    model(|| {
        let (counters, slots) = shared(1);
        slots.put(1, &make(counters));
        let reader = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || lease(&slots))
        };
        if slots.take(0).is_some() {
            assert_eq!(slots.put(1, &make(counters)), Some(0));
        }
        reader.join().unwrap();
        drop(slots);
        let (made, gone) = (counters.made.load(Ordering::Relaxed), counters.gone.load(Ordering::Relaxed));
        assert_eq!(made, gone, "nothing is lost");
    });
}

#[test]
fn threads_that_grow_at_once_stay_within_the_places() {
    model(|| {
        let (counters, slots) = shared(2);
        let grow = |slots: Arc<Slots<Stream<'static>>>| move || slots.put(0b01, &make(counters)).is_some();
        let growing: Vec<_> = (0..2).map(|_| thread::spawn(grow(Arc::clone(&slots)))).collect();
        lease(&slots);
        let put = growing.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum::<u32>();
        assert_eq!(put, 1, "one place of two was allowed");
        assert_eq!(slots.enter().filled(), 0b01);
    });
}

#[test]
fn a_lease_outlives_the_places() {
    model(|| {
        let (counters, slots) = shared(1);
        slots.put(1, &make(counters));
        let leased = slots.enter().look(0, Arc::clone).unwrap();
        let other = thread::spawn(move || drop(slots));
        assert_eq!(counters.gone.load(Ordering::Relaxed), 0);
        drop(leased);
        other.join().unwrap();
        assert_eq!(counters.gone.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn leases_that_come_and_go_are_counted_back_to_none() {
    model(|| {
        let (counters, slots) = shared(1);
        slots.put(1, &make(counters));
        let leasing: Vec<_> = (0..2)
            .map(|_| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || slots.enter().look(0, Arc::clone))
            })
            .collect();
        let held: Vec<_> = leasing.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(slots.enter().look(0, Arc::strong_count), Some(3), "two leases and the place");
        assert!(slots.take(0).is_none(), "a leased stream stays");
        drop(held);
        assert_eq!(slots.enter().look(0, Arc::strong_count), Some(1));
        assert!(slots.take(0).is_some());
        assert_eq!(slots.enter().filled(), 0);
    });
}
