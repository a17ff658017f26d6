//! The pool's places: leases, growth, shrinking and the pool's end at the same time.

use loom::thread;

use crate::{
    model,
    shell::Held,
    slots::Slots,
    sync::{Arc, AtomicU64, Ordering},
};

/// A stream that knows whether it is destroyed. loom itself tells of one that never is, of a place that is used after its end,
/// and of a value that is changed while somebody looks at it.
struct Stream(Arc<Counters>);

struct Counters {
    made: AtomicU64,
    gone: AtomicU64,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counters {
    fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed)
    }
}

fn make(counters: &Arc<Counters>) -> Arc<Stream> {
    counters.made.fetch_add(1, Ordering::Relaxed);
    Arc::new(Stream(Arc::clone(counters)))
}

type Streams = Slots<Arc<Stream>>;

fn shared(places: usize) -> (Arc<Counters>, Arc<Streams>) {
    let counters = Counters { made: AtomicU64::new(0), gone: AtomicU64::new(0) };
    (Arc::new(counters), Arc::new(Slots::new(places)))
}

fn put(slots: &Streams, among: u64, stream: Arc<Stream>) -> Option<usize> {
    slots.put(among, stream).ok().map(|(index, _held)| index)
}

fn take(slots: &Streams, index: usize) -> Option<Arc<Stream>> {
    slots.take(index, |_, stream| Arc::strong_count(stream) == 1)
}

fn check(held: &Held<Arc<Stream>>) {
    assert!(held.0.gone() < held.0.made(), "a leased stream is alive");
}

/// Leases what there is, uses it, and gives it back.
fn lease(slots: &Streams) {
    if let Some((held, _)) = (0..slots.len()).find_map(|index| slots.hold(index)) {
        check(&held);
        held.set_note(1);
        check(&held);
    }
}

#[test]
fn a_stream_is_retired_only_while_nobody_looks_or_holds_it() {
    model(|| {
        let (counters, slots) = shared(1);
        put(&slots, 1, make(&counters));
        let leasing = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || lease(&slots))
        };
        let looking = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                if let Some((stream, leases)) = slots.look(0) {
                    assert!(leases <= 1);
                    assert_eq!(stream.0.gone(), 0);
                }
            })
        };
        let taken = take(&slots, 0);
        if let Some(stream) = &taken {
            assert_eq!(Arc::strong_count(stream), 1, "whoever takes it has it alone");
        }
        let was_taken = taken.is_some();
        drop(taken);
        leasing.join().unwrap();
        looking.join().unwrap();
        assert_eq!(counters.gone(), u64::from(was_taken));
        assert_eq!((slots.leases(0), slots.filled()), (0, u64::from(!was_taken)));
    });
}

#[test]
fn a_place_is_used_again_while_leases_come_and_go() {
    model(|| {
        let (counters, slots) = shared(1);
        put(&slots, 1, make(&counters));
        let leasing: Vec<_> = (0..2)
            .map(|_| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || lease(&slots))
            })
            .collect();
        if take(&slots, 0).is_some() {
            assert_eq!(put(&slots, 1, make(&counters)), Some(0));
        }
        for thread in leasing {
            thread.join().unwrap();
        }
        assert_eq!(slots.leases(0), 0);
        assert!(slots.hold(0).is_some(), "who found it empty left nothing behind");
        drop(slots);
        assert_eq!(counters.made(), counters.gone(), "nothing is lost");
    });
}

#[test]
fn a_stream_that_core_still_holds_is_put_back() {
    model(|| {
        let (counters, slots) = shared(1);
        let (_, held) = slots.put(1, make(&counters)).ok().unwrap();
        let leasing = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || lease(&slots))
        };
        // As a lease that becomes core's: counted by the clone from before the lease ends.
        let queue = Arc::clone(&held);
        drop(held);
        assert!(take(&slots, 0).is_none(), "a leased stream stays");
        leasing.join().unwrap();
        drop(queue);
        assert!(slots.hold(0).is_some(), "it can be leased again");
        assert!(take(&slots, 0).is_some());
        assert_eq!(counters.gone(), 1);
    });
}

#[test]
fn threads_that_grow_at_once_stay_within_the_places() {
    model(|| {
        let (counters, slots) = shared(2);
        let growing: Vec<_> = (0..2)
            .map(|_| {
                let (slots, counters) = (Arc::clone(&slots), Arc::clone(&counters));
                thread::spawn(move || put(&slots, 0b01, make(&counters)).is_some())
            })
            .collect();
        if let Some((held, _)) = slots.hold(0) {
            assert!(held.0.made() >= 1, "what is found is there");
        }
        let put = growing.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum::<u32>();
        assert_eq!(put, 1, "one place of two was allowed");
        assert_eq!((slots.filled(), slots.leases(0)), (0b01, 0));
    });
}

#[test]
fn threads_that_shrink_at_once_leave_the_least() {
    model(|| {
        let (counters, slots) = shared(2);
        put(&slots, 0b11, make(&counters));
        put(&slots, 0b11, make(&counters));
        let shrink =
            |slots: &Streams, index| slots.take(index, |filled, _| filled.count_ones() > 1).is_some();
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || shrink(&slots, 0))
        };
        let mine = shrink(&slots, 1);
        assert!(mine ^ other.join().unwrap(), "one of two");
        assert_eq!(slots.filled().count_ones(), 1);
    });
}

#[test]
fn leases_outlive_the_places_and_the_last_frees_its_own() {
    model(|| {
        let (counters, slots) = shared(2);
        put(&slots, 0b11, make(&counters));
        put(&slots, 0b11, make(&counters));
        let leasing: Vec<_> = (0..2)
            .map(|_| {
                let (held, _) = slots.hold(0).unwrap();
                thread::spawn(move || {
                    check(&held);
                    drop(held);
                })
            })
            .collect();
        drop(slots);
        assert!(counters.gone() >= 1, "what is not leased goes with the pool");
        for thread in leasing {
            thread.join().unwrap();
        }
        assert_eq!(counters.gone(), 2);
    });
}

#[test]
fn leases_that_come_and_go_are_counted_back_to_none() {
    model(|| {
        let (counters, slots) = shared(1);
        put(&slots, 1, make(&counters));
        let leasing: Vec<_> = (0..2)
            .map(|_| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || slots.hold(0).map(|(held, _)| held))
            })
            .collect();
        let held: Vec<_> = leasing.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(slots.leases(0), 2);
        assert_eq!(slots.look(0).map(|(_, leases)| leases), Some(2));
        assert!(take(&slots, 0).is_none(), "a leased stream stays");
        drop(held);
        assert_eq!(slots.leases(0), 0);
        assert!(take(&slots, 0).is_some());
        assert_eq!(slots.filled(), 0);
        assert!(slots.hold(0).is_none() && slots.look(0).is_none());
    });
}
