//! The devices of this machine behind one transfer manager, and the reasons for those that are not there.

use std::fmt;

use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, RawBuffer, Result};
use transload_transfer::CrossBackendTransferManager;

use crate::families::FAMILIES;

/// What [`discover`](Self::discover) found. All methods may be called from any thread.
///
/// Dropping it neither waits for transfers in flight nor stops them; [`drain`](Self::drain) waits.
pub struct Runtime {
    manager: CrossBackendTransferManager,
    absent: Vec<(&'static str, Error)>,
}

impl Runtime {
    /// Registers the host, and every family of devices that this machine and this build have. A family that is not there
    /// is no error: [`absent`](Self::absent) tells why.
    ///
    /// # Errors
    /// That of the host's own backend, where the system refuses it threads.
    pub fn discover() -> Result<Self> {
        Self::discover_into(CrossBackendTransferManager::new())
    }

    /// Like [`discover`](Self::discover), but into a manager with an observer, a sampling or backends of its own. These stay,
    /// and a family of which the manager has a device already is not looked for.
    ///
    /// # Errors
    /// As for `discover`.
    pub fn discover_into(manager: CrossBackendTransferManager) -> Result<Self> {
        let has = |family| manager.devices().iter().any(|info| info.id.family() == family);
        if !has(DeviceId::Cpu.family()) {
            manager.register_backend(CpuBackend::new()?)?;
        }
        let mut absent = Vec::new();
        for (family, discover) in FAMILIES.into_iter().filter(|(family, _)| !has(family)) {
            if let Err(reason) = discover().and_then(|backend| manager.register_backend(backend)) {
                absent.push((family, reason));
            }
        }
        Ok(Self { manager, absent })
    }

    /// The transfer manager over everything that was found.
    #[must_use]
    pub fn manager(&self) -> &CrossBackendTransferManager {
        &self.manager
    }

    /// Returns the devices, the host first, the others in the order of their registration.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let mut devices = self.manager.devices();
        devices.sort_by_key(|info| !info.id.is_cpu());
        devices
    }

    /// Families that were looked for and are not there, each with the reason.
    #[must_use]
    pub fn absent(&self) -> &[(&'static str, Error)] {
        &self.absent
    }

    /// A device that is there.
    ///
    /// # Errors
    /// That of [`explain`](Self::explain) where it is not.
    pub fn device(&self, device: DeviceId) -> Result<DeviceInfo> {
        self.devices().into_iter().find(|info| info.id == device).ok_or_else(|| self.explain(device))
    }

    /// Why a device is not there: the reason of its family with what was looked for, or which devices the family has.
    ///
    /// For a device that is there the answer is an [`ErrorKind::InvalidArgument`] that says so.
    ///
    /// ```
    /// use transload::{DeviceId, Runtime};
    ///
    /// let runtime = Runtime::discover()?;
    /// println!("{}", runtime.explain(DeviceId::Cuda(64)));
    /// # Ok::<(), transload::Error>(())
    /// ```
    #[must_use]
    pub fn explain(&self, device: DeviceId) -> Error {
        let devices = self.devices();
        if devices.iter().any(|info| info.id == device) {
            return Error::new(ErrorKind::InvalidArgument, format!("{device} is there"));
        }
        if let Some((_, reason)) = self.absent.iter().find(|(family, _)| *family == device.family()) {
            return Error::caused_by(reason.kind(), format!("there is no device {device}"), reason.clone());
        }
        let there: Vec<String> = devices.iter().map(|info| info.id.to_string()).collect();
        let there = there.join(", ");
        if devices.iter().any(|info| info.id.family() == device.family()) {
            let text = format!("there is no device {device}; there are {there}");
            return Error::new(ErrorKind::UnknownDevice, text);
        }
        let text = format!(
            "there is no device {device}: this version of transload has no {} backend; there are {there}",
            device.family()
        );
        Error::new(ErrorKind::UnknownDevice, text)
    }

    /// Allocates `bytes` of a kind of memory.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::allocate`]; for a device that is not there that of
    /// [`explain`](Self::explain).
    pub fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.device(device)?;
        self.manager.allocate(device, kind, bytes)
    }

    /// Waits for all work in flight, and frees what was dropped while in use.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::drain`].
    pub fn drain(&self) -> Result<()> {
        self.manager.drain()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<DeviceId> = self.devices().iter().map(|info| info.id).collect();
        f.debug_struct("Runtime")
            .field("devices", &devices)
            .field("absent", &self.absent)
            .finish_non_exhaustive()
    }
}
