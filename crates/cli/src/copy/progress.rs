//! A bar on stderr for a person who looks at it; nothing otherwise.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::invocation::Invocation;

/// Goes over the bytes twice: up and down.
pub(super) struct Progress {
    bar: ProgressBar,
    simulated: &'static str,
}

impl Progress {
    pub(super) fn new(invocation: &Invocation, bytes: u64) -> Self {
        let hidden = invocation.json || !std::io::stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(bytes.saturating_mul(2)), target);
        let template = "{msg} [{bar:32}] {bytes} of {total_bytes}, {binary_bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, simulated: if invocation.is_simulated() { " (simulated)" } else { "" } }
    }

    pub(super) fn phase(&self, name: &str) {
        self.bar.set_message(format!("{name}{}", self.simulated));
    }

    pub(super) fn advance(&self, bytes: usize) {
        self.bar.inc(bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
