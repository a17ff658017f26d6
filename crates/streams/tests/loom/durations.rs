//! Durations of operations that another thread's event completed.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    model,
    pending_events::{Ended, PendingEvents, PointState, Start, Timed},
    sync::Arc,
};

/// Knows its time from the second query on.
#[derive(Default)]
struct Late(AtomicU32);

impl Timed for Late {
    fn since(&self, _start: &Self) -> Option<Duration> {
        (self.0.fetch_add(1, Ordering::Relaxed) > 0).then_some(Duration::from_micros(3))
    }
}

#[test]
fn duration_unknown_at_completion_is_returned_once_later() {
    model(|| {
        let mut line = PendingEvents::with_room();
        let start = Start { event: Arc::new(Late::default()), asked_for: true, counted: false };
        line.push(1, "copy", Arc::new(Late::default()), Some(start));
        // Another thread's event for a later point, which completes first.
        line.push(2, "copy", Arc::new(Late::default()), None);
        let ended = line.complete_or_list_timed(2).unwrap();
        let durations: Vec<_> = ended.into_iter().map(|ended| (ended.upto, ended.duration())).collect();
        line.complete_with(2, &durations);
        assert!(matches!(line.covering(2), PointState::Complete));
        assert_eq!(line.take_duration(1), None);
        let duration = line.take_untimed(1).and_then(Ended::duration);
        assert_eq!(duration, Some(Duration::from_micros(3)));
        assert!(line.take_untimed(1).is_none());
    });
}
