//! Shows progress on standard error if that is a terminal.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over all measurements.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
}

impl Progress {
    /// Creates a bar of `measurements` steps.
    #[must_use]
    pub fn new(measurements: u64) -> Self {
        let bar = ProgressBar::new(measurements);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now() }
    }

    /// Begins the next measurement. Redraws now, but not while it runs.
    pub fn next(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
        self.bar.tick();
    }

    /// Adds `more` measurements.
    pub fn expect(&self, more: u64) {
        self.bar.inc_length(more);
    }

    /// Removes the bar and returns the seconds since its creation.
    #[must_use]
    pub fn finish(&self) -> f64 {
        self.bar.finish_and_clear();
        self.begun.elapsed().as_secs_f64()
    }
}
