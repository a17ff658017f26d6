//! What the benchmark is asked for.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::exit;

/// A group of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Host to host.
    Cpu,
    /// Every path with a CUDA device.
    Cuda,
    /// Streams of a CUDA device.
    Streams,
    /// Memory of a CUDA device: unified, filled, pinned.
    Memory,
    /// What must not cost more the more there is of it: transfers in flight, threads, other work beside.
    Scaling,
}

/// Measures paths of the host and of one or two devices beside the same movement by hand, and verifies every byte.
#[derive(Clone, Debug, Parser)]
#[command(name = "transload-bench", version, after_help = exit::HELP)]
pub struct Options {
    /// Sizes up to 4 MiB and fewer repetitions: under a minute.
    #[arg(long)]
    pub quick: bool,
    /// Writes the results here as JSON.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Only these groups.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Group>,
    /// Of the groups streams, memory and scaling, only the parts whose name contains one of these texts.
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub parts: Vec<String>,
    /// The software driver in place of the machine's; its rows are labelled so.
    #[arg(long)]
    pub simulate: bool,
    /// Repetitions of every measurement, in place of a number that depends on the size. 30 is the least that counts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub repetitions: Option<u32>,
    /// The seed of all contents.
    #[arg(long, default_value_t = 0x7261_6E73_6C6F_6164)]
    pub seed: u64,
    /// Prints where counted allocations come from, at most so many.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub explain_allocations: u32,
}

impl Options {
    /// Whether a group is wanted.
    #[must_use]
    pub fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    /// Whether a part of a group is wanted.
    #[must_use]
    pub fn wants_part(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|text| name.contains(text.as_str()))
    }

    /// Whether any group needs a CUDA device.
    #[must_use]
    pub fn wants_device(&self) -> bool {
        [Group::Cuda, Group::Streams, Group::Memory, Group::Scaling]
            .into_iter()
            .any(|group| self.wants(group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_a_piece_of_their_name_and_all_are_without_a_choice() {
        let of = |words: &[&str]| Options::parse_from([&["transload-bench"], words].concat());
        assert!(of(&[]).wants_part("advising"));
        let some = of(&["--parts", "advis,work"]);
        assert!(some.wants_part("advising") && some.wants_part("the same work by other ways"));
        assert!(!some.wants_part("filling"));
    }
}
