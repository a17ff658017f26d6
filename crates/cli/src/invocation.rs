//! State shared by the subcommands: the runtime and the output format.

use std::{fs, io::Read as _, path::Path};

use serde::Serialize;
use transload::{DeviceId, DeviceInfo, Runtime, calibration::CalibrationStore};

#[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
use crate::args::WgpuAdapters;
use crate::{
    args::{Arguments, Command},
    costs,
    exit::{Exit, Failure},
};

/// How wgpu's devices are found.
const WGPU: &str = if cfg!(feature = "wgpu") {
    "wgpu's devices are looked for with --wgpu only"
} else {
    "wgpu's devices need a transload that is built with its feature `wgpu`, and --wgpu"
};

/// The runtime, and whether to print JSON.
pub(crate) struct Invocation {
    pub(crate) runtime: Runtime,
    pub(crate) json: bool,
}

impl Invocation {
    /// Installs the software driver if requested, then discovers devices.
    pub(crate) fn start(arguments: &Arguments) -> Result<Self, Failure> {
        #[cfg(feature = "sim")]
        install(&arguments.simulation)?;
        // What is measured repeatedly is pageable memory.
        let mut builder = Runtime::builder().registration(false);
        #[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
        if let Some(adapters) = arguments.wgpu {
            let config = transload::wgpu::WgpuBackendConfig::default();
            builder = builder.wgpu(match adapters {
                WgpuAdapters::Gpu => config,
                WgpuAdapters::Software => config.with_software_adapters(),
            });
        }
        if let Some(file) = &arguments.calibration {
            if matches!(arguments.command, Command::Calibrate(_)) {
                check_replaceable(file)?;
            }
            builder = builder.calibration(CalibrationStore::File(file.clone()));
        }
        let runtime = builder.discover()?;
        if let Some(file) = &arguments.calibration
            && !matches!(arguments.command, Command::Calibrate(_))
        {
            check_used(&runtime, file)?;
        }
        if let Some(file) = &arguments.costs {
            costs::set(&runtime, file)?;
        }
        Ok(Self { runtime, json: arguments.json })
    }

    /// Returns whether any device is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.runtime.devices().iter().any(|device| device.simulated)
    }

    /// Returns a device; if it is absent, the reason and the exit code.
    pub(crate) fn device(&self, id: DeviceId) -> Result<DeviceInfo, Failure> {
        self.runtime.device(id).map_err(|error| {
            let failure = Failure { exit: Exit::Device, error: error.into() };
            let was_sought = self.runtime.absent().iter().any(|(family, _)| *family == id.family());
            match id {
                DeviceId::Wgpu(_) | DeviceId::Metal(_) if !was_sought => failure.during(WGPU),
                _ => failure,
            }
        })
    }

    /// Waits until nothing of a command is in flight, also after a failure. Returns the first error.
    pub(crate) fn drain_after<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let drained = self.runtime.drain();
        let value = outcome?;
        drained?;
        Ok(value)
    }

    /// Renders a result as one JSON object, or as text that starts with `simulated` if it is.
    pub(crate) fn render<T: Serialize>(
        &self,
        command: &'static str,
        result: &T,
        human: impl FnOnce() -> String,
    ) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Envelope<'a, T> {
            command: &'static str,
            simulated: bool,
            #[serde(flatten)]
            result: &'a T,
        }
        let simulated = self.is_simulated();
        if self.json {
            let envelope = Envelope { command, simulated, result };
            let json = serde_json::to_string_pretty(&envelope)
                .map_err(|error| Failure::caused_by(Exit::Io, "cannot write the result as JSON", error))?;
            return Ok(json + "\n");
        }
        let head = if simulated {
            "simulated: a software driver plays the CUDA devices of this run\n\n"
        } else {
            ""
        };
        Ok(head.to_owned() + &human())
    }
}

/// Checks that the runtime uses the calibration in a file.
fn check_used(runtime: &Runtime, file: &Path) -> Result<(), Failure> {
    let failure = match runtime.stored_calibration() {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => Failure::new(Exit::Input, format!("there is no file {}", file.display())),
        Err(error) => Failure::from(error),
    };
    Err(failure
        .during("--calibration needs a calibration of this machine; `transload calibrate --calibration FILE` writes one"))
}

/// Refuses to replace a file of something else. What is no regular file is never replaced.
fn check_replaceable(file: &Path) -> Result<(), Failure> {
    if !fs::symlink_metadata(file).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let mut begin = Vec::new();
    let read = fs::File::open(file).and_then(|file| file.take(64).read_to_end(&mut begin));
    read.map_err(|error| Failure::caused_by(Exit::Io, format!("cannot read {}", file.display()), error))?;
    if begins_calibration(&begin) {
        return Ok(());
    }
    let text = format!("{} is no calibration, and is not replaced; name another file", file.display());
    Err(Failure::new(Exit::Input, text))
}

/// Returns whether a calibration of any version, which may be cut off, begins so.
fn begins_calibration(text: &[u8]) -> bool {
    const KEY: &[u8] = br#","key":{"library":""#;
    let Some(rest) = text.strip_prefix(br#"{"format":"#) else { return text.is_empty() };
    let version = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = rest.get(version..).unwrap_or_default();
    version > 0 && (rest.starts_with(KEY) || KEY.starts_with(rest))
}

#[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
fn install(wanted: &crate::args::Simulation) -> Result<(), Failure> {
    let Some(count) = wanted.simulate else {
        return match wanted.simulate_memory {
            Some(_) => Err(Failure::new(Exit::Input, "--simulate-memory needs --simulate")),
            None => Ok(()),
        };
    };
    transload_cuda_sim::install()
        .map_err(|error| Failure::caused_by(Exit::Device, "cannot simulate", error))?;
    for _ in 0..count {
        let mut device = transload_cuda_sim::SimDevice::builder();
        if let Some(bytes) = wanted.simulate_memory {
            let bytes = usize::try_from(bytes).map_err(|_| {
                Failure::new(Exit::Input, format!("{bytes} bytes exceed this machine's addresses"))
            })?;
            device = device.total_memory(bytes);
        }
        let _ = device.build();
    }
    Ok(())
}

#[cfg(all(feature = "sim", not(any(target_os = "linux", windows))))]
fn install(wanted: &crate::args::Simulation) -> Result<(), Failure> {
    match wanted.simulate {
        Some(_) => {
            Err(Failure::new(Exit::Device, "the software CUDA driver exists on Linux and Windows only"))
        }
        None => Ok(()),
    }
}
