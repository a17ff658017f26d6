//! NUMA placement of host memory: the node nearest to a device, and a preference for it.
//!
//! Every function may be called from any thread, and has no effect on hosts with one node or unknown topology.

#[cfg(target_os = "linux")]
use transload_cuda_sys::{Device, attribute};

/// NUMA node that pinned pages are allocated from. If the node is full, others are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaBinding {
    /// The node nearest to the device, if known.
    #[default]
    DeviceNode,
    /// The node with this number.
    Node(u32),
    /// The system's choice: usually the allocating thread's node.
    Anywhere,
}

#[cfg(target_os = "linux")]
impl NumaBinding {
    /// Returns the node to prefer, if there is a choice.
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

/// Returns the node nearest to a device, from the driver (CUDA 12.2 and newer) or from its bus address.
#[cfg(target_os = "linux")]
fn nearest(device: Device) -> Option<u32> {
    let told = device.attribute(attribute::HOST_NUMA_ID).ok().and_then(|node| u32::try_from(node).ok());
    told.or_else(|| {
        let address = device.pci_bus_id().ok()?.to_ascii_lowercase();
        let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?;
        // -1: no nearest node.
        text.trim().parse().ok()
    })
}

#[cfg(target_os = "linux")]
fn has_several_nodes() -> bool {
    let list = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    count(list.trim()) > 1
}

/// Counts the numbers in a list such as `0-3,5`.
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

/// Prefers (`MPOL_PREFERRED`) a node for an untouched mapping. Strict binding to a full node would kill the process.
///
/// # Errors
/// The system's; the mapping then has pages of any node.
#[cfg(target_os = "linux")]
pub(super) fn prefer(start: *mut u8, bytes: usize, node: u32) -> std::io::Result<()> {
    /// Capacity of the mask: the largest that kernels are built for.
    const NODES: usize = 1024;
    const BITS: usize = u64::BITS as usize;
    let mut mask = [0_u64; NODES / BITS];
    let Some(word) = mask.get_mut(node as usize / BITS) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    *word = 1 << (node as usize % BITS);
    // SAFETY: a policy changes no content; the range is the caller's mapping, and the mask has the given number of bits
    // (the kernel counts from one).
    let bound = unsafe {
        libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_PREFERRED, mask.as_ptr(), NODES + 1, 0)
    };
    if bound == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/unit/numa.rs"]
mod tests;
