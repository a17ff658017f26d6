//! Host kernels: Rust functions that the simulated device runs in place of device kernels.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{
    access::AccessKind,
    code::{self, CuResult},
    memory::Memory,
};

/// A Rust implementation of a device kernel. Register it under the kernel's entry name with [`register_host_kernel`].
///
/// ```
/// use transload_cuda_sim::{HostKernel, KernelAccess, register_host_kernel};
///
/// /// `clear(unsigned char* bytes, unsigned long n)`
/// const CLEAR: HostKernel = HostKernel {
///     parameters: &[8, 8],
///     accesses: |launch, _| vec![KernelAccess::write(launch.number(0), launch.number(1) as usize)],
///     run: |launch, memory| memory.write(launch.number(0), &vec![0; launch.number(1) as usize]),
/// };
/// register_host_kernel("clear", CLEAR);
/// // Enough of a module for this driver; the PTX for the hardware will do, too.
/// let ptx = ".version 7.0 .target sm_70 .visible .entry clear() { ret; }";
/// ```
///
/// The functions run under the driver's lock: they must not call the driver or announce host accesses.
#[derive(Clone, Copy, Debug)]
pub struct HostKernel {
    /// Size of each parameter in bytes, in order.
    pub parameters: &'static [usize],
    /// Returns every range that a launch reads or writes; it may read memory for that, such as a list of addresses. Called when
    /// the launch is enqueued and when it runs. The kernel cannot access other memory.
    pub accesses: fn(&Launch, &KernelMemory<'_>) -> Vec<KernelAccess>,
    /// Runs the kernel.
    pub run: fn(&Launch, &mut KernelMemory<'_>) -> Result<(), IllegalAddress>,
}

/// A range that a launch accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAccess {
    /// First byte, in the kernel's address space.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether the range is read or written.
    pub kind: AccessKind,
}

impl KernelAccess {
    /// Returns a range that is only read.
    #[must_use]
    pub fn read(address: u64, bytes: usize) -> Self {
        Self { address, bytes, kind: AccessKind::Read }
    }

    /// Returns a range that is written, and may be read.
    #[must_use]
    pub fn write(address: u64, bytes: usize) -> Self {
        Self { address, bytes, kind: AccessKind::Write }
    }
}

/// The launch parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in each dimension.
    pub grid: (u32, u32, u32),
    /// Threads per block in each dimension.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory per block in bytes.
    pub shared_bytes: u32,
    /// The bytes of each parameter, with the sizes that [`HostKernel::parameters`] declares.
    pub parameters: Vec<Vec<u8>>,
}

impl Launch {
    /// Returns a parameter as an unsigned integer (little endian, up to 8 bytes); 0 if it does not exist.
    #[must_use]
    pub fn number(&self, index: usize) -> u64 {
        let bytes = self.parameters.get(index).map_or(&[][..], Vec::as_slice);
        bytes.iter().take(8).rev().fold(0, |number, byte| (number << 8) | u64::from(*byte))
    }
}

/// The kernel accessed memory that is not allocated, not accessible from its device, or not declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalAddress;

/// The memory that a running kernel can access: the ranges it declared.
#[derive(Debug)]
pub struct KernelMemory<'a> {
    pub(crate) memory: &'a Memory,
    /// Sorted by address.
    pub(crate) declared: Vec<KernelAccess>,
    /// Whether pageable host memory is accessible.
    pub(crate) pageable: bool,
}

impl<'a> KernelMemory<'a> {
    /// Memory of which all that is live can be read.
    pub(crate) fn readable(memory: &'a Memory) -> Self {
        Self { memory, declared: vec![KernelAccess::read(0, usize::MAX)], pageable: false }
    }
}

impl KernelMemory<'_> {
    /// Checks that a range can be read, before memory for its content is allocated.
    ///
    /// # Errors
    /// [`IllegalAddress`] if the range was not declared or is not live.
    pub fn check(&self, address: u64, bytes: usize) -> Result<(), IllegalAddress> {
        self.reach(address, bytes, AccessKind::Read).map(drop)
    }

    /// Reads `into.len()` bytes.
    ///
    /// # Errors
    /// [`IllegalAddress`] if the range was not declared or is not live.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), IllegalAddress> {
        let from = self.reach(address, into.len(), AccessKind::Read)?;
        // SAFETY: `reach` found the whole range live; `into` is of this length.
        unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Writes `from`.
    ///
    /// # Errors
    /// [`IllegalAddress`] if the range was not declared for writing or is not live.
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), IllegalAddress> {
        let to = self.reach(address, from.len(), AccessKind::Write)?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Copies between two declared ranges, which may overlap.
    ///
    /// # Errors
    /// [`IllegalAddress`] if a range was not declared or is not live.
    pub fn copy(&mut self, from: u64, to: u64, bytes: usize) -> Result<(), IllegalAddress> {
        let source = self.reach(from, bytes, AccessKind::Read)?;
        let target = self.reach(to, bytes, AccessKind::Write)?;
        // SAFETY: `reach` found both whole ranges live; `copy` allows overlap.
        unsafe { std::ptr::copy(source, target, bytes) };
        Ok(())
    }

    fn reach(&self, address: u64, bytes: usize, kind: AccessKind) -> Result<*mut u8, IllegalAddress> {
        let end = address.checked_add(bytes as u64).ok_or(IllegalAddress)?;
        let allows = |range: &KernelAccess| {
            let covers = range.address <= address && end <= range.address.saturating_add(range.bytes as u64);
            covers && (kind == AccessKind::Read || range.kind == AccessKind::Write)
        };
        // Usually the last one that begins at or before the address.
        let before = self.declared.partition_point(|range| range.address <= address);
        let begun = self.declared.get(..before).unwrap_or_default();
        if !begun.iter().rev().any(allows) {
            return Err(IllegalAddress);
        }
        match self.memory.touch(address, bytes) {
            Ok(start) => Ok(start.as_ptr()),
            Err(_) if self.pageable && !self.memory.overlaps(address, bytes) => {
                Ok(std::ptr::with_exposed_provenance_mut(address as usize))
            }
            Err(_) => Err(IllegalAddress),
        }
    }
}

static HOST_KERNELS: Mutex<BTreeMap<String, HostKernel>> = Mutex::new(BTreeMap::new());

/// Registers the implementation of the kernel `entry`, replacing an earlier one of that name. Of a module's PTX the driver reads
/// `.version` and the names after `.entry`, no bodies; it loads only if each entry has an implementation.
pub fn register_host_kernel(entry: &str, kernel: HostKernel) {
    HOST_KERNELS.lock().insert(entry.to_owned(), kernel);
}

/// Returns the host kernels of a module, by entry name.
pub(crate) fn of_module(text: &str) -> CuResult<BTreeMap<String, HostKernel>> {
    if !text.contains(".version") {
        return Err(code::INVALID_PTX);
    }
    let host_kernels = HOST_KERNELS.lock();
    let mut found = BTreeMap::new();
    for entry in text.split(".entry").skip(1) {
        let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '$' | '%');
        let name: String = entry.trim_start().chars().take_while(|letter| is_name(*letter)).collect();
        let kernel = host_kernels.get(&name).ok_or(code::NO_BINARY_FOR_GPU)?;
        found.insert(name, *kernel);
    }
    if found.is_empty() { Err(code::NO_BINARY_FOR_GPU) } else { Ok(found) }
}
