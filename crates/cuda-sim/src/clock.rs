//! Vector clocks: what has happened before what, as far as driver calls order it.

/// Who acts: a stream by its handle, or the host.
pub(crate) type ActorId = u64;

/// The host is one actor: order among its threads comes from Rust's own synchronisation, which the driver cannot see, so
/// the order in which their calls arrive is taken for it. This may miss a race between threads and never invents one.
pub(crate) const HOST: ActorId = 0;

/// For each actor, how many of its steps have happened before. Sorted by actor and without gaps in memory: clocks are
/// cloned and joined with every operation, and rarely have more than some dozen actors.
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

    /// Learns what the other one knows. Both are walked once.
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

    /// Whom it knows of.
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
