//! Pinned host memory: allocated by the driver, or mapped with chosen pages and node, then registered.
//!
//! Every method may be called from any thread. Streams of every device may use the memory; buffers divided from it
//! order the host's use.

use std::sync::Arc;

use transload_core::{DeviceId, Error, MemoryInfo, MemoryKind, Place, RawBuffer, Result};
#[cfg(target_os = "linux")]
use transload_core::{ErrorKind, events::report};

use super::{MemoryResource, NumaBinding};
#[cfg(target_os = "linux")]
use super::{
    host_registration::{DEVICE_MAP, HostRegistration},
    mapping::{Mapping, MappingOptions},
};
use crate::{CudaMemoryManager, manager::AllocMode};
#[cfg(target_os = "linux")]
use crate::{
    error::lift_allocation,
    pinned_limit::Pinned,
    storage::{Address, DriverMemory, Origin},
};

/// Pages of pinned memory. All kinds use only the requested bytes, rounded up to a page of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPages {
    /// Huge pages for segments of 2 MiB and more if the system supports them on request; otherwise, or if registering
    /// fails, the driver's.
    #[default]
    Auto,
    /// Allocated by the driver (`cuMemHostAlloc`), on any node.
    Driver,
    /// Pages of 4 KiB, registered with the driver.
    Ordinary,
    /// Pages of 2 MiB if available, registered with the driver: fewer to fault in and to register.
    Huge,
}

/// Segments of pinned memory. Child processes created by fork do not inherit registered pages.
#[derive(Clone, Debug)]
pub struct PinnedResource {
    manager: Arc<CudaMemoryManager>,
    pages: HostPages,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "other systems bind no pages"))]
    numa: NumaBinding,
}

impl PinnedResource {
    /// Creates a resource near the manager's device, with pages that suit each size.
    #[must_use]
    pub fn new(manager: &Arc<CudaMemoryManager>) -> Self {
        Self { manager: Arc::clone(manager), pages: HostPages::default(), numa: NumaBinding::default() }
    }

    /// Sets the kind of pages.
    #[must_use]
    pub fn with_pages(mut self, pages: HostPages) -> Self {
        self.pages = pages;
        self
    }

    /// Sets the NUMA node; pages allocated by the driver are not bound.
    #[must_use]
    pub fn with_numa(mut self, numa: NumaBinding) -> Self {
        self.numa = numa;
        self
    }

    fn allocate_from_driver(&self, bytes: usize) -> Result<RawBuffer> {
        self.manager.allocate_as(MemoryKind::Pinned, bytes, AllocMode::Default)
    }

    /// Maps pages and registers them.
    #[cfg(target_os = "linux")]
    fn allocate_pages(&self, bytes: usize, options: MappingOptions) -> Result<RawBuffer> {
        self.manager.with_retry(|| self.try_allocate_pages(bytes, options))
    }

    #[cfg(target_os = "linux")]
    fn try_allocate_pages(&self, bytes: usize, options: MappingOptions) -> Result<RawBuffer> {
        let alloc = self.manager.alloc_context();
        let counted = alloc.counts.add_pinned(bytes, Pinned::Allocated)?;
        let mapping = Mapping::new(bytes, options)?;
        let (address, len) = (mapping.start(), mapping.len());
        let start = address.as_ptr().expose_provenance();
        // SAFETY: the mapping is its own owner.
        let registration =
            unsafe { HostRegistration::new(alloc.context, start, len, DEVICE_MAP, Box::new(mapping)) };
        let registration =
            registration.map_err(|error| lift_allocation(error, alloc.context, self.place(), bytes))?;
        let addresses = (Some(address), registration.device_address());
        let held = (Origin::Freed(Address::Registered(registration)), counted);
        let memory = DriverMemory::new(&alloc, MemoryKind::Pinned, bytes, addresses, held);
        Ok(RawBuffer::new(Box::new(memory), alloc.reclaimer))
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self, bytes: usize) -> Result<RawBuffer> {
        /// From this size on huge pages are worth a separate mapping.
        const HUGE_FROM: usize = 2 << 20;
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "an allocation needs at least 1 byte"));
        }
        if self.pages == HostPages::Driver {
            return self.allocate_from_driver(bytes);
        }
        let node = self.numa.node(self.manager.device().driver());
        match self.pages {
            HostPages::Ordinary => self.allocate_pages(bytes, MappingOptions { huge: false, node }),
            HostPages::Huge => {
                if !has_huge_pages() {
                    report::pages_declined("huge pages", bytes, &"the system gives none on request");
                }
                self.allocate_pages(bytes, MappingOptions { huge: true, node })
            }
            _ => {
                let huge = bytes >= HUGE_FROM && has_huge_pages();
                if !huge && node.is_none() {
                    return self.allocate_from_driver(bytes);
                }
                match self.allocate_pages(bytes, MappingOptions { huge, node }) {
                    Err(error) if !matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::DeviceLost) => {
                        report::pages_declined("registered pages", bytes, &error);
                        self.allocate_from_driver(bytes)
                    }
                    other => other,
                }
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn allocate(&self, bytes: usize) -> Result<RawBuffer> {
        if bytes == 0 || matches!(self.pages, HostPages::Auto | HostPages::Driver) {
            return self.allocate_from_driver(bytes);
        }
        let text = "pages can be chosen on Linux only; valid here are Auto and Driver";
        Err(Error::new(transload_core::ErrorKind::Unsupported, text))
    }
}

/// Returns whether the system gives huge pages on request.
#[cfg(target_os = "linux")]
fn has_huge_pages() -> bool {
    let told = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    told.contains("[madvise]") || told.contains("[always]")
}

// SAFETY: every allocation is returned once, as an exclusive buffer, and freed only when nothing in flight uses it.
unsafe impl MemoryResource for PinnedResource {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pinned)
    }

    fn device(&self) -> Option<DeviceId> {
        None
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.allocate(bytes)
    }

    fn trim(&self) -> Result<()> {
        self.manager.drain_device_work()
    }

    /// Returns the host's memory, or what the limit on pinned memory leaves of it; `Unsupported` if unknown.
    fn info(&self) -> Result<MemoryInfo> {
        Ok(self.manager.pinned_limit().cap(transload_core::host_memory()?))
    }
}
