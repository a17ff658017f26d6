//! Peer access: queried from the driver, enabled once.

use parking_lot::RwLock;
use transload_core::{DeviceId, Error, ErrorKind, PeerAccess, Result};
use transload_memory::lift;

use crate::device::DeviceState;

/// Pairs (device, peer) that this backend enabled. Other code in the process may have enabled more; enabling access
/// again is harmless.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    enabled: RwLock<Vec<(DeviceId, DeviceId)>>,
}

impl Peers {
    /// Returns the peer access of a device. Creates no context.
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

    /// Enables access in one direction: of the context, which covers plain allocations, and of the peer's memory pool.
    /// Neither waits for device work. Holds no lock, so two threads may both call the driver, which is harmless.
    pub(crate) fn enable(&self, device: &DeviceState, peer: &DeviceState) -> Result<()> {
        match self.access(device, peer)? {
            PeerAccess::Enabled => return Ok(()),
            PeerAccess::Available => {}
            PeerAccess::Unavailable => {
                let (own, other) = (device.device.id(), peer.device.id());
                let text = format!("{own} cannot access the memory of {other}: they are no peers");
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

/// Returns all ordered pairs of two devices.
pub(crate) fn pairs(states: &[DeviceState]) -> impl Iterator<Item = (DeviceId, DeviceId)> {
    let ids = || states.iter().map(|state| state.device.id());
    ids().flat_map(move |src| ids().map(move |dst| (src, dst))).filter(|(src, dst)| src != dst)
}
