//! The results of a check and of the suite.

use std::{any::Any, fmt, panic::Location};

use crate::{Error, panic_text};

/// The result of a check that found no broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The promise was tested and held.
    Passed,
    /// The device does not support what the promise is about; the reason.
    NotApplicable(String),
}

impl Verdict {
    pub(super) fn passed_if(any: bool, otherwise: &str) -> Self {
        if any { Self::Passed } else { Self::NotApplicable(otherwise.to_owned()) }
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Name of the check.
    pub check: &'static str,
    /// Seed to reproduce the failure.
    pub seed: u64,
    /// What was expected and what was found.
    pub details: String,
    /// Source location in the suite.
    pub location: &'static Location<'static>,
}

impl Failure {
    #[track_caller]
    pub(super) fn new(details: String) -> Self {
        Self { check: "", seed: 0, details, location: Location::caller() }
    }

    #[track_caller]
    pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Self {
        Self::new(format!("something panicked: {}", panic_text(panic)))
    }
}

/// An unexpected error.
impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::new(format!("unexpected error {error:?}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, seed, details, location } = self;
        write!(f, "{check} (seed {seed}): {details} [{}:{}]", location.file(), location.line())
    }
}

impl std::error::Error for Failure {}

/// The results of all checks.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a broken promise stands in here"]
pub struct Outcome {
    /// Each check's name and result, in order.
    pub results: Vec<(&'static str, Result<Verdict, Failure>)>,
}

impl Outcome {
    /// Returns whether no promise was broken.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Returns the number of promises tested and held.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.results.iter().filter(|(_, result)| matches!(result, Ok(Verdict::Passed))).count()
    }

    /// Returns what the device does not support, with reasons.
    pub fn not_applicable(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.results.iter().filter_map(|(name, result)| match result {
            Ok(Verdict::NotApplicable(reason)) => Some((*name, reason.as_str())),
            _ => None,
        })
    }

    /// Returns the broken promises.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.results.iter().filter_map(|(_, result)| result.as_ref().err())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failures().count(), self.not_applicable().count());
        write!(f, "{} passed, {skipped} not applicable, {failed} failed", self.passed())?;
        self.not_applicable()
            .try_for_each(|(name, reason)| write!(f, "\n  not applicable: {name}: {reason}"))?;
        self.failures().try_for_each(|failure| write!(f, "\n  failed: {failure}"))
    }
}
