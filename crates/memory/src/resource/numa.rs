//! Which node of the host's memory is nearest to a device, and the wish that pages be taken from there.
//!
//! Every function may be called from any thread. On a host of one node, and where the system does not tell, nothing is done.

#[cfg(target_os = "linux")]
use transload_cuda_sys::{Device, attribute};

/// From which node of the host's memory pinned pages are taken. What a node cannot give comes from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaBinding {
    /// The node nearest to the device, where the system tells which.
    #[default]
    DeviceNode,
    /// The node with this number.
    Node(u32),
    /// As the system sees fit: usually where the allocating thread runs.
    Anywhere,
}

#[cfg(target_os = "linux")]
impl NumaBinding {
    /// The node to take, if there is a choice.
    pub(super) fn node(self, device: Device) -> Option<u32> {
        if self == Self::Anywhere || !has_several_nodes() {
            return None;
        }
        match self {
            Self::DeviceNode => nearest(device),
            Self::Node(node) => Some(node),
            Self::Anywhere => None,
        }
    }
}

/// The node nearest to a device: the driver says it since CUDA 12.2, the system by the device's address on its bus.
#[cfg(target_os = "linux")]
fn nearest(device: Device) -> Option<u32> {
    let told = device.attribute(attribute::HOST_NUMA_ID).ok().and_then(|node| u32::try_from(node).ok());
    told.or_else(|| {
        let address = device.pci_bus_id().ok()?.to_ascii_lowercase();
        let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?;
        // -1 where it is near to none.
        text.trim().parse().ok()
    })
}

#[cfg(target_os = "linux")]
fn has_several_nodes() -> bool {
    let list = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    count(list.trim()) > 1
}

/// How many numbers a list such as `0-3,5` names.
#[cfg(target_os = "linux")]
fn count(list: &str) -> usize {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => last.saturating_add(1).saturating_sub(first),
            _ => 0,
        }
    };
    list.split(',').map(of_range).fold(0, usize::saturating_add)
}

/// Wishes the pages of a mapping that was not touched yet onto a node. A wish and no order: where the node is full, an order
/// would end in the process being killed rather than in an error.
#[cfg(target_os = "linux")]
pub(super) fn prefer(start: *mut u8, bytes: usize, node: u32) {
    /// Nodes that the mask has room for: as many as any kernel is built for.
    const NODES: usize = 1024;
    const BITS: usize = u64::BITS as usize;
    let mut mask = [0_u64; NODES / BITS];
    let Some(word) = mask.get_mut(node as usize / BITS) else { return };
    *word = 1 << (node as usize % BITS);
    // SAFETY: the policy of pages changes no content; the range is the caller's mapping and the mask has as many bits as said
    // (the kernel counts from one).
    let _only_slower = unsafe {
        libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_PREFERRED, mask.as_ptr(), NODES + 1, 0)
    };
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/unit/numa.rs"]
mod tests;
