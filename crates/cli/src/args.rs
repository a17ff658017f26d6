//! Command line arguments.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use transload::{MemoryKind, Place};

use crate::{exit, text};

/// Moves bytes between the memories of this machine and reports how.
#[derive(Debug, Parser)]
#[command(name = "transload", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print the result as one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Use the calibration in this file, which `calibrate` writes, instead of the one in the user's cache directory. `calibrate` replaces
    /// no file but an empty one or a calibration.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Choose methods by the costs in this file, which `costs --json` prints, before those that were measured. It may have some of
    /// them only.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) costs: Option<PathBuf>,
    /// Look for wgpu's devices too: those of Vulkan as wgpu:0 and so on, or without any those of DX12 or OpenGL; on a Mac metal:0 and so
    /// on. A GPU that is a CUDA device is there twice then. With `software`, also for adapters that run on the processor.
    #[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
    #[arg(
        long,
        global = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "gpu",
        value_name = "ADAPTERS"
    )]
    pub(crate) wgpu: Option<WgpuAdapters>,
    #[cfg(feature = "sim")]
    #[command(flatten)]
    pub(crate) simulation: Simulation,
}

/// The adapters to look for.
#[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WgpuAdapters {
    /// GPUs.
    Gpu,
    /// GPUs and software adapters.
    Software,
}

/// Replaces the system's CUDA driver by a simulation.
#[cfg(feature = "sim")]
#[derive(Debug, Args)]
pub(crate) struct Simulation {
    /// Use a software CUDA driver with N devices instead of the system's. All results are then labelled simulated.
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
    /// Memory of each simulated device.
    #[arg(long, global = true, hide = true, value_name = "SIZE", value_parser = text::parse_size)]
    pub(crate) simulate_memory: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices, and the reasons why others are absent.
    Devices,
    /// Show how bytes would be moved, and why, without moving any.
    #[command(after_help = exit::HELP)]
    Plan(Plan),
    /// Measure each method on this machine, and choose by the measured times from then on.
    ///
    /// The times of copies are kept in a file of the user's cache directory, or where --calibration says, and used by every program
    /// that enables the feature `calibration`, as long as they fit: the same devices, driver, processors and version. The machine should
    /// be idle.
    #[command(after_help = exit::HELP)]
    Calibrate(Calibrate),
    /// Print the costs that methods are chosen by, each with where it comes from.
    Costs,
    /// Copy a file to a device, read it back and compare the bytes.
    #[command(after_help = exit::HELP)]
    Copy(Copy),
    /// Load the tensors of a safetensors file onto a device.
    #[command(after_help = exit::HELP)]
    Load(Load),
    /// Measure a small grid of copies to and from each device.
    #[command(after_help = exit::HELP)]
    Bench(Bench),
    /// Run a program that uses Transload, and record what it moves, when and how fast.
    ///
    /// The trace opens at https://ui.perfetto.dev; nothing is uploaded. The program must enable the feature `profiler` of transload. Each of
    /// its runtimes, and of the programs that it starts, records a file: FILE, then FILE with .2, .3 and so on before the extension. What is
    /// recorded is in the file even if the program is killed. If it is not, advice is printed: what would take less time. The exit code is the program's, or 2 if it succeeded and recorded nothing.
    /// With --json, the object follows the program's own output, whatever its exit code.
    Trace(Trace),
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Source: DEVICE[/KIND], such as cpu, cpu/pinned, cuda:0 or cuda:0/unified (or cpu:pinned).
    #[arg(value_parser = text::parse_place)]
    pub(crate) from: Place,
    /// Destination. Default kind: pageable memory on the host, device memory on a device.
    #[arg(value_parser = text::parse_place)]
    pub(crate) to: Place,
    /// Number of bytes, such as 4096, 64KiB, 256MiB or 1GB.
    #[arg(value_parser = text::parse_size)]
    pub(crate) size: u64,
    /// Plan a list of so many copies of that size each.
    #[arg(long, value_name = "NUMBER", conflicts_with = "curve")]
    pub(crate) pieces: Option<u64>,
    /// With --pieces: the device has no other work meanwhile.
    #[arg(long, requires = "pieces")]
    pub(crate) exclusive: bool,
    /// Also show each size's method, and the sizes at which it changes.
    #[arg(long)]
    pub(crate) curve: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// Time for each pair of devices, in seconds, instead of 6.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) budget: Option<u64>,
    /// The largest copy.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = text::parse_size)]
    pub(crate) largest: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// A regular, non-empty file that fits into the device's free memory.
    pub(crate) file: PathBuf,
    /// Device and optional kind of memory, such as cuda:0, cpu or cuda:0/unified.
    #[arg(long, value_name = "DEVICE", value_parser = text::parse_place)]
    pub(crate) to: Place,
    /// Size of a chunk, which is also that of a host buffer; there are up to four, or as many as hold 128 MiB [default: what suits the
    /// processor's cache].
    #[arg(long, value_name = "SIZE", value_parser = text::parse_size)]
    pub(crate) chunk: Option<u64>,
    /// Read into pinned memory, or fail; the default if the device supports it.
    #[arg(long, conflicts_with = "pageable")]
    pub(crate) pinned: bool,
    /// Read into pageable memory.
    #[arg(long)]
    pub(crate) pageable: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// A safetensors file whose tensors fit into the device's free memory.
    pub(crate) file: PathBuf,
    /// Device and optional kind of memory, such as cuda:0, cpu or cuda:0/unified.
    #[arg(long, value_name = "DEVICE", value_parser = text::parse_place)]
    pub(crate) to: Place,
    /// Kind of memory: device or unified on a device; pageable, pinned or mapped on the host.
    #[arg(long, value_parser = text::parse_kind)]
    pub(crate) kind: Option<MemoryKind>,
    /// Size of a chunk, which is also that of a host buffer; there are up to four, or as many as hold 128 MiB [default: what suits the
    /// processor's cache].
    #[arg(long, value_name = "SIZE", value_parser = text::parse_size)]
    pub(crate) chunk: Option<u64>,
    /// Hash each tensor (XXH3, 64 bits) while reading the file, and compare with the hash of the bytes on the device.
    #[arg(long)]
    pub(crate) checksum: bool,
    /// Read everything back from the device and compare it with the file, which is read again.
    #[arg(long)]
    pub(crate) verify: bool,
    /// List the tensors.
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Use fewer sizes and repetitions.
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The file to write. An earlier trace there, and those numbered after it, are replaced; anything else is not. One that is still being recorded,
    /// or that another `transload trace` writes, is refused.
    #[arg(long, short, value_name = "FILE", default_value = "transload.pftrace")]
    pub(crate) output: PathBuf,
    /// Also record the exact spans of copy engines and kernels, which takes NVIDIA's CUPTI and slows driver calls.
    #[arg(long)]
    pub(crate) engines: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl Arguments {
    /// Returns whether an option says which devices there are.
    pub(crate) fn are_devices_chosen(&self) -> bool {
        let mut chosen = self.is_simulated();
        #[cfg(feature = "sim")]
        {
            chosen |= self.simulation.simulate_memory.is_some();
        }
        #[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
        {
            chosen |= self.wgpu.is_some();
        }
        chosen
    }

    /// Returns whether the software driver was requested.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(feature = "sim")]
        return self.simulation.simulate.is_some();
        #[cfg(not(feature = "sim"))]
        false
    }
}
