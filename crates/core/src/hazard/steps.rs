//! Counts the visited segments and uses, for the cost tests in `tests/steps`.

#[cfg(test)]
thread_local!(static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

#[inline]
pub(super) fn count() {
    #[cfg(test)]
    COUNT.with(|steps| steps.set(steps.get() + 1));
}

/// Returns the calling thread's count.
#[cfg(test)]
#[allow(dead_code, reason = "tests/steps includes this file")]
pub(crate) fn counted() -> u64 {
    COUNT.with(std::cell::Cell::get)
}
