//! Vector clocks: what has happened before what, as far as driver calls order it.

use std::collections::BTreeMap;

/// Who acts: a stream by its handle, or the host.
pub(crate) type ActorId = u64;

/// The host is one actor: order among its threads comes from Rust's own synchronisation, which the driver cannot see, so
/// the order in which their calls arrive is taken for it. This may miss a race between threads and never invents one.
pub(crate) const HOST: ActorId = 0;

/// For each actor, how many of its steps have happened before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(BTreeMap<ActorId, u64>);

impl Clock {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn of(&self, actor: ActorId) -> u64 {
        self.0.get(&actor).copied().unwrap_or(0)
    }

    pub(crate) fn tick(&mut self, actor: ActorId) {
        *self.0.entry(actor).or_insert(0) += 1;
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (actor, step) in &other.0 {
            let mine = self.0.entry(*actor).or_insert(0);
            *mine = (*mine).max(*step);
        }
    }

    /// Whom it knows of.
    pub(crate) fn actors(&self) -> impl Iterator<Item = ActorId> {
        self.0.keys().copied()
    }

    pub(crate) fn forget(&mut self, actor: ActorId) {
        self.0.remove(&actor);
    }
}
