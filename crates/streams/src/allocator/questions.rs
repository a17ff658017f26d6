//! Asking about many fences: of one stream the first ones only, since what comes behind them is not over before.

use transload_core::Fence;

/// So many answers that nothing is over are enough.
const IN_VAIN: usize = 64;

/// Asks the driver about fences, as long as it tells anything new. An error counts as over: it is told to who awaits the work.
pub(super) fn ask_in_order(mut fences: Vec<Fence>) {
    fences.retain(|fence| !fence.is_known_done());
    fences.sort_by_key(|fence| (fence.timeline().id(), fence.point()));
    let streams = fences.chunk_by(|one, next| one.timeline().id() == next.timeline().id());
    let unfinished = streams.filter(|of_one| !of_one.iter().all(Fence::is_over));
    let _asked = unfinished.take(IN_VAIN).count();
}

/// The first fence of each stream among those that are not known to be over, of at most so many streams.
pub(super) fn first_of_each<'a>(fences: impl Iterator<Item = &'a Fence>, streams: usize) -> Vec<Fence> {
    let mut first: Vec<&Fence> = Vec::with_capacity(streams);
    for fence in fences.filter(|fence| !fence.is_known_done()) {
        let is_full = first.len() >= streams;
        match first.iter_mut().find(|known| known.timeline().id() == fence.timeline().id()) {
            Some(known) if fence.point() < known.point() => *known = fence,
            None if !is_full => first.push(fence),
            _ => {}
        }
    }
    first.into_iter().cloned().collect()
}
