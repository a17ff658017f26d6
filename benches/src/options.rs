//! Command-line options of the benchmark.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::exit;

/// A group of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Host to host.
    Cpu,
    /// Paths with a CUDA device.
    Cuda,
    /// CUDA streams.
    Streams,
    /// CUDA memory: unified, fills, pinned.
    Memory,
    /// Costs under load: transfers in flight, threads, concurrent work.
    Scaling,
    /// What the choice of methods costs after a calibration.
    Choice,
    /// Many pieces at once.
    Many,
    /// Blocks that go up and down at once while the device computes.
    Beside,
    /// Rows of matrices.
    Strided,
    /// Copies between element types.
    Cast,
    /// Files to devices, and downloads into fresh memory; on Linux.
    Load,
    /// Vulkan devices, next to plain wgpu.
    #[cfg(feature = "wgpu")]
    Wgpu,
}

/// Measures copies on the paths of the host and of one or two devices against hand-written ones, and verifies every byte.
#[derive(Clone, Debug, Parser)]
#[command(name = "transload-bench", version, after_help = exit::HELP)]
pub struct Options {
    /// Sizes up to 4 MiB and fewer repetitions: under a minute.
    #[arg(long)]
    pub quick: bool,
    /// Write the results to this file as JSON.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Run only these groups.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Group>,
    /// Run only the parts of groups whose name contains one of these texts, or is one of them after `=`. Parts of the groups cpu and cuda
    /// are PATH/BYTES, submit/PATH, allocations/PATH, methods/PATH, completion, threads and baselines.
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Use the software driver; its rows are marked `simulated`.
    #[arg(long)]
    pub simulate: bool,
    /// Also measure Vulkan adapters that run on the host's processor; the ids of their rows say `software`.
    #[cfg(feature = "wgpu")]
    #[arg(long)]
    pub software_adapters: bool,
    /// Fail if there is no CUDA device, instead of using the software driver; and if there is none of Vulkan for the group wgpu.
    #[arg(long, conflicts_with = "simulate")]
    pub hardware: bool,
    /// Keep this process to so many of its processors, on Linux: the part `confined` of the group scaling is of these, and empty without it;
    /// rows of the group choice have the number in their ids.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub processors: Option<u16>,
    /// Repetitions of every measurement, instead of a number that depends on the size. Use at least 30.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub repetitions: Option<u32>,
    /// Seed of all contents.
    #[arg(long, default_value_t = 0x7261_6E73_6C6F_6164)]
    pub seed: u64,
    /// Print the backtraces of at most this many counted allocations.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub explain_allocations: u32,
    /// Compare with an earlier program: it and this one run in turns with the other options, and what changed is printed. An
    /// unpacked bundle of `cargo xtask bundle`, or a `transload-bench`.
    #[arg(long, value_name = "BUNDLE")]
    pub against: Option<PathBuf>,
    /// Processes of each program, at least. The more rows, the more are needed: 9 for 20 rows, 11 for 100.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(7..=30), requires = "against")]
    pub processes: u32,
    /// Compare only rows whose id contains one of these texts. The fewer rows, the fewer processes.
    #[arg(long, value_name = "TEXT", value_delimiter = ',', requires = "against")]
    pub rows: Vec<String>,
    /// The smallest change that counts, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, requires = "against")]
    pub least_change: f64,
    /// Append what changed to this file as Markdown.
    #[arg(long, value_name = "PATH", requires = "against")]
    pub summary: Option<PathBuf>,
    /// Make this program worse, to test that a comparison finds it: `300ns` a submission, `3%` of each copy, or an `allocation`.
    #[arg(long, value_name = "FAULT", hide = true)]
    pub planted: Option<String>,
}

impl Options {
    /// Returns whether a group is selected.
    #[must_use]
    pub fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    /// Returns whether a part of a group is selected.
    #[must_use]
    pub fn wants_part(&self, name: &str) -> bool {
        let is_it = |text: &String| match text.strip_prefix('=') {
            Some(exact) => name == exact,
            None => name.contains(text.as_str()),
        };
        self.parts.is_empty() || self.parts.iter().any(is_it)
    }

    /// Returns whether a selected group needs a CUDA device.
    #[must_use]
    pub fn wants_device(&self) -> bool {
        let without = [
            Group::Cpu,
            #[cfg(feature = "wgpu")]
            Group::Wgpu,
        ];
        Group::value_variants().iter().any(|group| !without.contains(group) && self.wants(*group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_selected_by_substring_and_all_by_default() {
        let of = |words: &[&str]| Options::parse_from([&["transload-bench"], words].concat());
        assert!(of(&[]).wants_part("advising"));
        let some = of(&["--parts", "advis,work"]);
        assert!(some.wants_part("advising") && some.wants_part("the same work by other ways"));
        assert!(!some.wants_part("filling"));
        let one = of(&["--parts", "=up,=filling"]);
        assert!(one.wants_part("up") && one.wants_part("filling") && !one.wants_part("pageable-up"));
    }
}
