//! Which devices reach each other's memory: asked of the driver, enabled once.

use parking_lot::RwLock;
use transload_core::{DeviceId, Error, ErrorKind, PeerAccess, Result};
use transload_memory::lift;

use crate::device::DeviceState;

/// What this backend enabled, as (device, peer). Access that others enabled in the process is not known here; enabling
/// it again does no harm.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    enabled: RwLock<Vec<(DeviceId, DeviceId)>>,
}

impl Peers {
    /// Makes no context: the driver answers for devices.
    pub(crate) fn access(&self, device: &DeviceState, peer: &DeviceState) -> Result<PeerAccess> {
        let (own, other) = (device.device.id(), peer.device.id());
        if own == other {
            return Ok(PeerAccess::Unavailable);
        }
        if self.enabled.read().contains(&(own, other)) {
            return Ok(PeerAccess::Enabled);
        }
        let can = device.device.driver().can_access_peer(peer.device.driver()).map_err(lift)?;
        Ok(if can { PeerAccess::Available } else { PeerAccess::Unavailable })
    }

    /// One way: the context's access, which covers plain allocations, and that of the peer's memory pool. Neither waits
    /// for work of a device; no lock is held meanwhile, so two threads may both ask the driver, which does no harm.
    pub(crate) fn enable(&self, device: &DeviceState, peer: &DeviceState) -> Result<()> {
        match self.access(device, peer)? {
            PeerAccess::Enabled => return Ok(()),
            PeerAccess::Available => {}
            PeerAccess::Unavailable => {
                let (own, other) = (device.device.id(), peer.device.id());
                let text = format!("{own} cannot reach the memory of {other}: they are no peers");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        }
        device.device.context()?.enable_peer(peer.device.context()?).map_err(lift)?;
        peer.memory()?.allow_peer(&device.device)?;
        let pair = (device.device.id(), peer.device.id());
        let mut enabled = self.enabled.write();
        if !enabled.contains(&pair) {
            enabled.push(pair);
        }
        Ok(())
    }
}
