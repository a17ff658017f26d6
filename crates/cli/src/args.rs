//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use transload::{MemoryKind, Place};

use crate::{exit, text};

/// Moves bytes between the memories of this machine, and says how it did it.
#[derive(Debug, Parser)]
#[command(name = "transload", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print the result as one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[cfg(feature = "sim")]
    #[command(flatten)]
    pub(crate) simulation: Simulation,
}

/// What stands in the place of the system's CUDA driver.
#[cfg(feature = "sim")]
#[derive(Debug, Args)]
pub(crate) struct Simulation {
    /// Use a software CUDA driver with N devices instead of the system's. Everything printed is then called simulated.
    #[arg(
        long,
        global = true,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(crate) simulate: Option<u32>,
    /// The memory of each simulated device.
    #[arg(long, global = true, hide = true, value_name = "SIZE", value_parser = text::parse_size)]
    pub(crate) simulate_memory: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices, and what was looked for and not found.
    Devices,
    /// Say how bytes would be moved, and why so, without moving any.
    #[command(after_help = exit::HELP)]
    Plan(Plan),
    /// Send a file's bytes to a device, read them back and compare them.
    #[command(after_help = exit::HELP)]
    Copy(Copy),
    /// Load the tensors of a safetensors file onto a device, and say how that went.
    #[command(after_help = exit::HELP)]
    Load(Load),
    /// Measure a small grid of copies to and from each device.
    #[command(after_help = exit::HELP)]
    Bench(Bench),
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// From where: DEVICE[/KIND], such as cpu, cpu/pinned, cuda:0 or cuda:0/unified (cpu:pinned is understood too).
    #[arg(value_parser = text::parse_place)]
    pub(crate) from: Place,
    /// To where, likewise. Without a kind: pageable memory of the host, a device's own memory.
    #[arg(value_parser = text::parse_place)]
    pub(crate) to: Place,
    /// How many bytes, such as 4096, 64KiB, 256MiB or 1GB.
    #[arg(value_parser = text::parse_size)]
    pub(crate) size: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// A regular file of at least one byte that fits into the device's free memory.
    pub(crate) file: PathBuf,
    /// The device, such as cuda:0 or cpu; a kind of memory may follow, such as cuda:0/unified.
    #[arg(long, value_name = "DEVICE", value_parser = text::parse_place)]
    pub(crate) to: Place,
    /// How much is read and sent at once; up to four such pieces of host memory are in use.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = text::parse_size)]
    pub(crate) chunk: u64,
    /// Read into pinned memory, or fail; this is the default where the device offers it.
    #[arg(long, conflicts_with = "pageable")]
    pub(crate) pinned: bool,
    /// Read into ordinary memory.
    #[arg(long)]
    pub(crate) pageable: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// A safetensors file whose tensors fit into the device's free memory.
    pub(crate) file: PathBuf,
    /// The device, such as cuda:0 or cpu; a kind of memory may follow, such as cuda:0/unified.
    #[arg(long, value_name = "DEVICE", value_parser = text::parse_place)]
    pub(crate) to: Place,
    /// The kind of memory: device or unified on a device; pageable, pinned or mapped on the host.
    #[arg(long, value_parser = text::parse_kind)]
    pub(crate) kind: Option<MemoryKind>,
    /// How much is read and sent at once; up to four such pieces of host memory are in use.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = text::parse_size)]
    pub(crate) chunk: u64,
    /// Hash each tensor (XXH3, 64 bits) while the file is read, read it back from the device and compare its hash.
    #[arg(long)]
    pub(crate) checksum: bool,
    /// Read everything back from the device and compare it with the file, read again.
    #[arg(long)]
    pub(crate) verify: bool,
    /// List the tensors.
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Fewer sizes and repetitions.
    #[arg(long)]
    pub(crate) quick: bool,
}

impl Arguments {
    /// Whether a software driver was asked for.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(feature = "sim")]
        return self.simulation.simulate.is_some();
        #[cfg(not(feature = "sim"))]
        false
    }
}
