//! Deliberate faults for `cargo xtask mutants`: each leaves out one step, which the test named for it must
//! notice.

/// Returns whether the fault `name` is selected by the environment variable `TRANSLOAD_MUTANT`.
#[cfg(mutants)]
#[doc(hidden)]
#[must_use]
pub fn is_chosen(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("TRANSLOAD_MUTANT").ok()).as_deref() == Some(name)
}

/// Returns whether a deliberate fault is active: always `false` in ordinary builds, at no run-time cost. With
/// `--cfg mutants` it is the one that `TRANSLOAD_MUTANT` names. `crates/*/mutants.txt` lists all with the
/// tests that find them.
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {{
        #[cfg(mutants)]
        let chosen = $crate::mutants::is_chosen($name);
        #[cfg(not(mutants))]
        let chosen = false;
        chosen
    }};
}
