//! What every subcommand starts from: the runtime, and how to print.

use serde::Serialize;
use transload::{DeviceId, DeviceInfo, Runtime};

use crate::{
    args::Arguments,
    exit::{Exit, Failure},
};

/// The devices that were found, and whether JSON is wanted.
pub(crate) struct Invocation {
    pub(crate) runtime: Runtime,
    pub(crate) json: bool,
}

impl Invocation {
    /// Puts the software driver in place where it is asked for, then looks for devices.
    pub(crate) fn start(arguments: &Arguments) -> Result<Self, Failure> {
        #[cfg(feature = "sim")]
        install(&arguments.simulation)?;
        Ok(Self { runtime: Runtime::discover()?, json: arguments.json })
    }

    /// Whether any device is played by software.
    pub(crate) fn is_simulated(&self) -> bool {
        self.runtime.devices().iter().any(|device| device.simulated)
    }

    /// A device that is there; else why it is not, with the exit code for that.
    pub(crate) fn device(&self, id: DeviceId) -> Result<DeviceInfo, Failure> {
        self.runtime.device(id).map_err(|error| Failure::new(Exit::Device, error.to_string()))
    }

    /// What came of a command, once nothing of it is in flight: also after a failure nothing stays behind, and the first error
    /// counts.
    pub(crate) fn drained<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let drained = self.runtime.drain();
        let value = outcome?;
        drained?;
        Ok(value)
    }

    /// The result as it is printed: one JSON object, or the text for people, which says `simulated` first where it is.
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
            let json = serde_json::to_string_pretty(&envelope).map_err(|error| {
                Failure::new(Exit::Io, format!("cannot write the result as JSON: {error}"))
            })?;
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

#[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
fn install(wanted: &crate::args::Simulation) -> Result<(), Failure> {
    let Some(count) = wanted.simulate else {
        return match wanted.simulate_memory {
            Some(_) => Err(Failure::new(Exit::Input, "--simulate-memory needs --simulate")),
            None => Ok(()),
        };
    };
    transload_cuda_sim::install()
        .map_err(|error| Failure::new(Exit::Device, format!("cannot simulate: {error}")))?;
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
