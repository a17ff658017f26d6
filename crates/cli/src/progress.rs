//! A progress bar on stderr, if that is a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::invocation::Invocation;

/// What is counted.
pub(crate) const BYTES: &str = "{msg} [{bar:32}] {bytes} of {total_bytes}, {binary_bytes_per_sec}";
pub(crate) const SIZES: &str = "{msg} [{bar:32}] {pos} of {len} sizes";

/// What is done, of a total.
pub(crate) struct Progress {
    bar: ProgressBar,
    simulated: &'static str,
}

impl Progress {
    pub(crate) fn new(invocation: &Invocation, template: &str) -> Self {
        let hidden = invocation.json || !std::io::stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, simulated: if invocation.is_simulated() { " (simulated)" } else { "" } }
    }

    pub(crate) fn phase(&self, name: &str) {
        self.bar.set_message(format!("{name}{}", self.simulated));
    }

    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
