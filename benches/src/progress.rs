//! Says on standard error what is being measured; silent where that is no terminal.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over all measurements.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
}

impl Progress {
    /// Of so many measurements.
    #[must_use]
    pub fn new(measurements: u64) -> Self {
        let bar = ProgressBar::new(measurements);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now() }
    }

    /// The next one begins. Drawn now and not again while it runs.
    pub fn next(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
        self.bar.tick();
    }

    /// There are more than was thought.
    pub fn expect(&self, more: u64) {
        self.bar.inc_length(more);
    }

    /// All are done; answers how many seconds it took.
    #[must_use]
    pub fn finish(&self) -> f64 {
        self.bar.finish_and_clear();
        self.begun.elapsed().as_secs_f64()
    }
}
