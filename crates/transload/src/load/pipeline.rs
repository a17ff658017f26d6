//! Sends a file through a ring of staging buffers to the device: chunks are read while earlier ones are in flight. For
//! host destinations there is no ring: chunks are read in place.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicUsize},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{MemoryKind, RawBuffer, Result};
use transload_transfer::CrossBackendTransferManager;

use super::{
    hashes::Hashes,
    header::Header,
    layout::{Chunk, Cursor},
    options::{LoadOptions, LoadPhase},
    placement::TensorPlacement,
    readers::{self, ChunkQueue, Progress, Readers, RingBuffer, Sending},
    report::LoadReport,
    shape::{self, ActiveLoad, SLOTS_PER_READER},
    source::Source,
};
use crate::staging;

/// Sizes that are read by fewer readers than there are have smaller chunks than a slot, but no smaller ones than this.
const LEAST_CHUNK: usize = 256 << 10;

/// A load, and after it was sent its staging ring; empty if chunks are read in place.
pub(super) struct Pipeline<'a> {
    pub(super) manager: &'a CrossBackendTransferManager,
    pub(super) placement: Arc<TensorPlacement>,
    pub(super) options: &'a LoadOptions,
    pub(super) ring: Vec<RingBuffer>,
    pub(super) chunk: usize,
    readers: usize,
    /// Staging buffers, or chunks read concurrently in place, at most.
    buffers: usize,
    staging: Option<MemoryKind>,
    /// Until everything was sent.
    active: Option<ActiveLoad>,
}

impl<'a> Pipeline<'a> {
    /// Chooses the size and the number of buffers, and allocates the first one.
    ///
    /// # Errors
    /// The backend's.
    pub(super) fn new(
        manager: &'a CrossBackendTransferManager,
        placement: &Arc<TensorPlacement>,
        options: &'a LoadOptions,
    ) -> Result<Self> {
        let active = Some(ActiveLoad::begin());
        let (longest, all) = (placement.layout.longest(), placement.layout.bytes());
        let threads = readers::thread_count(options.readers, all as u64, manager.executor());
        let even = || all.div_ceil(threads * SLOTS_PER_READER).next_multiple_of(LEAST_CHUNK);
        let chunk = options.chunk.unwrap_or_else(|| even().min(shape::slot_now(threads))).min(longest);
        let device = options.place.device;
        let is_in_place = device.is_cpu() && options.staging.is_none();
        let usual = if is_in_place { threads * SLOTS_PER_READER } else { shape::buffers(threads, chunk) };
        let most = options.buffers.unwrap_or(usual);
        let buffers = placement.layout.chunks(chunk).take(most).count();
        let readers = threads.min(buffers);
        let mut pipeline = Self {
            manager,
            placement: Arc::clone(placement),
            options,
            ring: Vec::new(),
            chunk,
            readers,
            buffers,
            staging: None,
            active,
        };
        if buffers == 0 || is_in_place {
            return Ok(pipeline);
        }
        let allocate = |kind| Ok((kind, manager.allocate_staging(device, kind, chunk)?));
        let (kind, buffer) = match options.staging {
            Some(kind) => allocate(kind)?,
            None => staging::pinned_or_pageable(manager, device, allocate)?,
        };
        pipeline.ring.push(RingBuffer { buffer, transfer: None });
        pipeline.staging = Some(kind);
        Ok(pipeline)
    }

    /// Returns a report without times and methods.
    pub(super) fn report(&self, header: &Header, source: &Source) -> LoadReport {
        let devices = self.manager.devices();
        let device = self.options.place.device;
        LoadReport {
            place: self.options.place,
            bytes: header.bytes,
            file_bytes: source.len(),
            tensors: header.tensors.len(),
            segments: self.placement.layout.segments.len(),
            readers: self.readers,
            buffers: self.ring.len(),
            buffer_bytes: self.chunk,
            staging: self.staging,
            simulated: devices.iter().any(|info| info.id == device && info.simulated),
            chunks: 0,
            preparing: Duration::ZERO,
            wall: Duration::ZERO,
            verifying: None,
            methods: Vec::new(),
        }
    }

    /// Allocates the memory of the tensors while the first chunks are read, transfers them and waits for them. Returns their hashes if
    /// requested.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](transload_core::ErrorKind::Io), errors of the backend. Nothing is read or in flight then.
    pub(super) fn send(
        &mut self,
        header: &Header,
        source: &Arc<Source>,
        report: &mut LoadReport,
    ) -> Result<Option<Vec<u64>>> {
        let sending = Sending {
            manager: self.manager.clone(),
            source: Arc::clone(source),
            placement: Arc::clone(&self.placement),
            options: self.options.clone(),
            staging: self.staging,
            chunk: self.chunk,
            readers: self.readers,
            queue: Mutex::new(ChunkQueue {
                cursor: Cursor::default(),
                offset: header.data,
                end: header.data + header.bytes,
                taken: 0,
            }),
            progress: Mutex::default(),
            spare_buffers: AtomicUsize::new(self.buffers - self.readers),
            allocating: AtomicUsize::new(0),
            hashes: self.options.checksum.then(|| Mutex::new((0, Hashes::new(header.tensors.len())))),
            hashed: Condvar::new(),
            placed: Condvar::new(),
            failed: OnceLock::new(),
        };
        let readers = Readers::start(sending, self.ring.pop());
        readers.placed(self.placement.allocate(self.manager, self.options));
        let (mut told, mut is_stopped) = (0, false);
        while let Some(sent) = readers.next() {
            if sent > told && !is_stopped {
                told = sent;
                if let Err(error) = self.options.report_progress(LoadPhase::Sending, sent, header.bytes) {
                    is_stopped = true;
                    readers.fail(error);
                }
            }
        }
        let (ring, Progress { chunks, methods, .. }, hashes) = readers.finish()?;
        (report.buffers, report.chunks, report.methods) = (ring.len(), chunks, methods);
        self.ring = ring;
        self.active = None;
        source.check_unchanged()?;
        Ok(hashes)
    }

    /// Returns the memory of a chunk at its destination.
    pub(super) fn in_place_target(&self, chunk: &Chunk) -> Result<RawBuffer> {
        self.placement.segment(chunk.segment)?.slice(chunk.offset..chunk.offset + chunk.len)
    }
}
