//! Vector clocks: the happens-before order that driver calls establish.

/// An actor of the clock: a stream's handle, or [`HOST`].
pub(crate) type ActorId = u64;

/// The host. All its threads are one actor, because the driver cannot see how they synchronise; the order of their
/// calls stands in for it. This can miss a race between threads but never reports a false one.
pub(crate) const HOST: ActorId = 0;

/// The number of steps of each actor that happened before. A sorted vector: clocks are cloned and joined for every
/// operation and rarely have more than a few dozen actors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<(ActorId, u64)>);

impl Clock {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    fn position(&self, actor: ActorId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&actor, |(of, _)| *of)
    }

    pub(crate) fn of(&self, actor: ActorId) -> u64 {
        self.position(actor).ok().and_then(|at| self.0.get(at)).map_or(0, |(_, step)| *step)
    }

    pub(crate) fn tick(&mut self, actor: ActorId) {
        match self.position(actor) {
            Ok(at) => self.0.get_mut(at).into_iter().for_each(|(_, step)| *step += 1),
            Err(at) => self.0.insert(at, (actor, 1)),
        }
    }

    /// Takes the maximum of both clocks for each actor, in one pass.
    pub(crate) fn join(&mut self, other: &Self) {
        let mut at = 0;
        for &(actor, step) in &other.0 {
            while self.0.get(at).is_some_and(|(mine, _)| *mine < actor) {
                at += 1;
            }
            match self.0.get_mut(at) {
                Some((mine, known)) if *mine == actor => *known = (*known).max(step),
                _ => self.0.insert(at, (actor, step)),
            }
        }
    }

    /// Returns the actors in the clock.
    pub(crate) fn actors(&self) -> impl Iterator<Item = ActorId> {
        self.0.iter().map(|(actor, _)| *actor)
    }

    pub(crate) fn forget(&mut self, actor: ActorId) {
        if let Ok(at) = self.position(actor) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/clock.rs"]
mod tests;
