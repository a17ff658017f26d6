//! Translates an operation into driver calls; validates everything before the first call.

use std::os::raw::c_void;

use transload_core::{BlockList, Error, ErrorKind, MemoryKind, Operation, Pitched, Queue, RawBuffer, Result};
use transload_cuda_sys::{
    Context, DriverError, RawStream, Stream, check,
    cust::sys::{CUDA_MEMCPY2D, CUfunction},
    ffi,
};
use transload_memory::{MemoryLocation, PrefetchTarget, explain_hint, lift};

use super::{
    addresses::{DriverAddress, are_peers, driver_address, in_place, peer, reachable, unreachable},
    batches::{BatchCall, by_allocations, copy_batch},
    casts::Cast,
    fills::Fill,
    halves::Half,
    kernels::Kernels,
    lists::Pieces,
    loaded_module,
    split_copy::{split_copy, split_rows},
};
use crate::{CudaGraph, CudaStream, LaunchConfig, completion::timeline::StreamTimeline};

/// Maximum bytes of a small copy or fill: it takes a few microseconds, about as long as enqueueing it. See `points`.
pub(crate) const SMALL: usize = 64 << 10;

/// Like [`SMALL`], for a fill, which runs at device memory bandwidth.
pub(crate) const SMALL_FILL: usize = 1 << 20;

/// Returned by the driver for, among others, host memory that is partially registered.
pub(crate) const INVALID_VALUE: u32 = 1;

/// Validated driver calls of one operation.
pub(crate) enum DriverCalls<'a> {
    Copy(DriverAddress, DriverAddress, usize),
    CopyPitched(DriverAddress, DriverAddress, Pitched),
    CopyBatch(&'a [(RawBuffer, RawBuffer)], BatchCall),
    CopyPeer {
        src: (u64, &'a Context),
        dst: (u64, &'a Context),
        bytes: usize,
    },
    CopyInPlace {
        kernels: &'a Kernels,
        src: u64,
        dst: u64,
        bytes: usize,
    },
    CopyBatchInPlace(&'a Kernels, &'a [(RawBuffer, RawBuffer)], &'a StreamTimeline),
    CopyBlocks(&'a Kernels, &'a BlockList, &'a StreamTimeline),
    BatchHalf(Half<'a>),
    Cast(Cast<'a>),
    /// Like `CopyBatchInPlace`, with a list that is written: its address and length.
    CopyList(&'a Kernels, (u64, usize)),
    Fill(Fill<'a>),
    /// A kernel that occupies the device for so many nanoseconds.
    Occupy(&'a Kernels, u64),
    Prefetch(u64, usize, MemoryLocation, PrefetchTarget),
    Launch(&'a CudaGraph, &'a Stream),
    /// A caller's kernel, of a module that is loaded in the stream's context.
    Kernel(CUfunction, LaunchConfig, &'a mut [*mut c_void]),
}

impl<'a> DriverCalls<'a> {
    pub(crate) fn of(operation: &Operation<'a>, stream: &'a CudaStream) -> Result<Self> {
        match *operation {
            Operation::Copy { src, dst } => {
                reachable(stream, src, dst)?;
                Ok(Self::Copy(driver_address(src)?, driver_address(dst)?, src.len()))
            }
            Operation::CopyPitched { src, dst, rows } => {
                reachable(stream, src, dst)?;
                Ok(Self::CopyPitched(driver_address(src)?, driver_address(dst)?, rows))
            }
            Operation::CopyBatch { pairs } => {
                for (src, dst) in by_allocations(pairs) {
                    if !stream.can_copy(src.place(), dst.place()) && !are_peers(stream, src, dst)? {
                        return Err(unreachable(stream, src, dst));
                    }
                    driver_address(src)?;
                    driver_address(dst)?;
                }
                Ok(Self::CopyBatch(pairs, BatchCall::get()))
            }
            Operation::CopyPeer { src, dst } => {
                let (from, to) = (peer(src)?, peer(dst)?);
                if src.place().device != dst.place().device
                    && [src, dst].iter().any(|buffer| buffer.place().device == stream.device())
                {
                    return Ok(Self::CopyPeer { src: from, dst: to, bytes: src.len() });
                }
                let text = format!(
                    "a peer copy runs between two devices on a stream of one of them, not {} → {} on one of {}",
                    src.place(),
                    dst.place(),
                    stream.device()
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            Operation::CopyInPlace { src, dst } => {
                let (from, to) = (in_place(src, stream)?, in_place(dst, stream)?);
                let kernels = stream.own.kernels()?;
                Ok(Self::CopyInPlace { kernels, src: from, dst: to, bytes: src.len() })
            }
            Operation::CopyBatchInPlace { pairs } => {
                for (src, dst) in by_allocations(pairs) {
                    in_place(src, stream)?;
                    in_place(dst, stream)?;
                }
                Ok(Self::CopyBatchInPlace(stream.own.kernels()?, pairs, &stream.own))
            }
            Operation::Cast { src, from, dst, to } => {
                Cast::new((src, from), (dst, to), stream).map(Self::Cast)
            }
            // Without access, the error would occur at execution and break the context.
            Operation::Fill { dst, .. }
                if dst.place().kind == MemoryKind::Device && dst.place().device != stream.device() =>
            {
                let (own, place) = (stream.device(), dst.place());
                let text = format!(
                    "a stream of {own} fills its own memory, not {place}; use a stream of that device"
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            Operation::Fill { dst, pattern } => match driver_address(dst)? {
                DriverAddress::Device(address) => {
                    let kernels = || stream.own.fill_kernels();
                    Fill::new(address, dst.len(), pattern, kernels).map(Self::Fill)
                }
                DriverAddress::Host(_) => Err(Error::new(
                    ErrorKind::Unsupported,
                    "a stream fills device and unified memory; fill host memory through a host view",
                )),
            },
            Operation::Prefetch { buffer, to } => prefetched(buffer, MemoryLocation::try_from(to)?),
            Operation::PrefetchToNode { buffer, node } => {
                prefetched(buffer, node.map_or(MemoryLocation::HostNumaCurrent, MemoryLocation::HostNuma))
            }
            Operation::Replay { recorded } => match recorded.as_any().downcast_ref::<CudaGraph>() {
                Some(graph) if recorded.device() == stream.device() => {
                    Ok(Self::Launch(graph, stream.own.stream()))
                }
                _ => {
                    let (of, device) = (recorded.device(), stream.device());
                    let text = format!("a stream of {device} replays its own recordings, not one of {of}");
                    Err(Error::new(ErrorKind::Unsupported, text))
                }
            },
            _ => Err(Error::new(ErrorKind::Unsupported, "a CUDA stream does not know this operation")),
        }
    }

    /// Returns whether it is one small copy or fill, which may share an event with its neighbours.
    #[inline]
    pub(crate) fn are_small(&self) -> bool {
        match *self {
            Self::Copy(_, _, bytes) => bytes <= SMALL,
            Self::Fill(ref fill) => fill.is_one_call() && fill.bytes() <= SMALL_FILL,
            _ => false,
        }
    }

    /// Returns whether this library's kernels are launched.
    pub(crate) fn launch_kernels(&self) -> bool {
        match self {
            Self::CopyInPlace { .. }
            | Self::CopyBatchInPlace(..)
            | Self::CopyBlocks(..)
            | Self::BatchHalf(..)
            | Self::Cast(..)
            | Self::CopyList(..)
            | Self::Occupy(..) => true,
            Self::Fill(fill) => fill.launches_a_kernel(),
            _ => false,
        }
    }

    /// Returns its name, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Copy(..) => "copy",
            Self::CopyPitched(..) => "copy of rows",
            Self::CopyBatch(..) => "batch of copies",
            Self::CopyPeer { .. } => "peer copy",
            Self::CopyInPlace { .. } => "copy in place",
            Self::CopyBatchInPlace(..) | Self::CopyList(..) => "batch of copies in place",
            Self::CopyBlocks(..) => "list of blocks",
            Self::BatchHalf(..) => "half of a batch",
            Self::Cast(..) => "cast",
            Self::Fill(..) => "fill",
            Self::Prefetch(..) => "prefetch",
            Self::Launch(..) => "graph launch",
            Self::Kernel(..) | Self::Occupy(..) => "launch",
        }
    }

    /// Converts the driver's error. After a refused prefetch, queries the driver for the reason.
    #[cold]
    pub(crate) fn lift(&self, error: DriverError) -> Error {
        match *self {
            Self::Prefetch(address, bytes, to, _) => explain_hint(error, address, bytes, to),
            _ => lift(error),
        }
    }

    /// # Safety
    /// * The memory at the addresses stays alive and has no conflicting use until the enqueued work is complete; also after
    ///   an error, if `in_flight` is true.
    /// * A kernel's parameters match its signature, and its context is current.
    pub(crate) unsafe fn make(&mut self, stream: RawStream, in_flight: &mut bool) -> Result<(), DriverError> {
        let made = match *self {
            // SAFETY: the caller's promise.
            Self::Copy(src, dst, bytes) => unsafe { copy(src, dst, bytes, stream, in_flight) },
            // SAFETY: the caller's promise.
            Self::CopyPitched(src, dst, rows) => unsafe { copy_planes(src, dst, rows, stream, in_flight) },
            // SAFETY: the caller's promise.
            Self::CopyBatch(pairs, call) => unsafe { copy_batch(pairs, call, stream, in_flight) },
            // SAFETY: the caller's promise.
            Self::CopyPeer { src, dst, bytes } => unsafe { copy_peer(src, dst, bytes, stream) },
            // SAFETY: the caller's promise; the kernels are of the stream's context, which `enqueue` has entered.
            Self::CopyInPlace { kernels, src, dst, bytes } => unsafe {
                kernels.copy(src, dst, bytes, stream)
            },
            // SAFETY: as above.
            Self::CopyBatchInPlace(kernels, pairs, stream) => unsafe {
                kernels.copy_list(Pieces::of(pairs), stream, in_flight)
            },
            // SAFETY: as above.
            Self::CopyBlocks(kernels, blocks, stream) => unsafe {
                kernels.copy_list(Pieces::of_blocks(blocks), stream, in_flight)
            },
            // SAFETY: as above.
            Self::BatchHalf(ref half) => unsafe { half.make(in_flight) },
            // SAFETY: as above.
            Self::Cast(ref cast) => unsafe { cast.make(stream) },
            // SAFETY: as above.
            Self::CopyList(kernels, (list, count)) => unsafe { kernels.launch_list(list, count, stream) },
            // SAFETY: the caller's promise.
            Self::Fill(ref fill) => unsafe { fill.make(stream, in_flight) },
            // SAFETY: as above.
            Self::Occupy(kernels, nanoseconds) => unsafe { kernels.occupy(nanoseconds, stream) },
            Self::Prefetch(..) if transload_core::mutant!("streams/prefetch-is-enqueued") => Ok(()),
            Self::Prefetch(address, bytes, _, target) => {
                // SAFETY: the range is a live managed allocation, or the driver refuses it; the stream is alive.
                unsafe { target.enqueue(address, bytes, stream) }
            }
            // SAFETY: the caller's promise, for all memory that the recording uses.
            Self::Launch(graph, stream) => unsafe { graph.enqueue(stream) },
            // SAFETY: the caller's promise; the context is current.
            Self::Kernel(function, config, ref mut parameters) => unsafe {
                loaded_module::launch(function, config, parameters, stream)
            },
        };
        *in_flight |= made.is_ok();
        made
    }
}

/// # Safety
/// * As for [`DriverCalls::make`].
#[inline(always)]
pub(crate) unsafe fn copy(
    src: DriverAddress,
    dst: DriverAddress,
    bytes: usize,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe { copy_after(copy_once(src, dst, bytes, stream), src, dst, bytes, stream, in_flight) }
}

/// Completes a copy that was attempted in one call: memory that is partially registered is copied in parts.
///
/// # Safety
/// * As for [`DriverCalls::make`].
#[inline(always)]
pub(crate) unsafe fn copy_after(
    at_once: Result<(), DriverError>,
    src: DriverAddress,
    dst: DriverAddress,
    bytes: usize,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    match at_once {
        // SAFETY: the caller's promise; nothing was enqueued.
        Err(error) if error.code() == Some(INVALID_VALUE) => unsafe {
            split_copy(src, dst, bytes, stream, error, in_flight)
        },
        other => other,
    }
}

/// # Safety
/// * As for [`DriverCalls::make`].
#[inline(always)]
pub(crate) unsafe fn copy_once(
    src: DriverAddress,
    dst: DriverAddress,
    bytes: usize,
    stream: RawStream,
) -> Result<(), DriverError> {
    if bytes == 0 {
        return Ok(());
    }
    let (call, code) = match (src, dst) {
        (DriverAddress::Host(src), DriverAddress::Device(dst)) => {
            // SAFETY: the caller's promise.
            ("cuMemcpyHtoDAsync_v2", unsafe { ffi::cuMemcpyHtoDAsync_v2(dst, src, bytes, stream) })
        }
        (DriverAddress::Device(src), DriverAddress::Host(dst)) => {
            // SAFETY: the caller's promise.
            ("cuMemcpyDtoHAsync_v2", unsafe { ffi::cuMemcpyDtoHAsync_v2(dst, src, bytes, stream) })
        }
        (DriverAddress::Device(src), DriverAddress::Device(dst)) => {
            // SAFETY: the caller's promise.
            ("cuMemcpyDtoDAsync_v2", unsafe { ffi::cuMemcpyDtoDAsync_v2(dst, src, bytes, stream) })
        }
        // SAFETY: the caller's promise; with unified addressing the driver recognises host addresses.
        (DriverAddress::Host(src), DriverAddress::Host(dst)) => ("cuMemcpyAsync", unsafe {
            ffi::cuMemcpyAsync(dst.expose_provenance() as u64, src.expose_provenance() as u64, bytes, stream)
        }),
    };
    check(call, code)
}

/// One call for any size: the driver saturates the link.
///
/// # Safety
/// * As for [`DriverCalls::make`].
unsafe fn copy_peer(
    (src, from): (u64, &Context),
    (dst, to): (u64, &Context),
    bytes: usize,
    stream: RawStream,
) -> Result<(), DriverError> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise; the contexts are retained and each side's memory was allocated in its context.
    let code = unsafe { ffi::cuMemcpyPeerAsync(dst, to.as_raw(), src, from.as_raw(), bytes, stream) };
    check("cuMemcpyPeerAsync", code)
}

/// One call for each plane.
///
/// # Safety
/// * As for [`DriverCalls::make`].
unsafe fn copy_planes(
    src: DriverAddress,
    dst: DriverAddress,
    rows: Pitched,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    for plane in 0..rows.planes {
        let (from, to) = (src.behind(plane * rows.src_plane), dst.behind(plane * rows.dst_plane));
        // SAFETY: the caller's promise; the plane lies within the ranges.
        unsafe { copy_pitched(from, to, rows, stream, in_flight) }?;
        *in_flight = true;
    }
    Ok(())
}

/// # Safety
/// * As for [`DriverCalls::make`].
unsafe fn copy_pitched(
    src: DriverAddress,
    dst: DriverAddress,
    rows: Pitched,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    let (src_kind, src_host, src_device) = src.of_a_row();
    let (dst_kind, dst_host, dst_device) = dst.of_a_row();
    let parameters = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: src_kind,
        srcHost: src_host,
        srcDevice: src_device,
        srcArray: std::ptr::null_mut(),
        srcPitch: rows.src_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: dst_kind,
        dstHost: dst_host,
        dstDevice: dst_device,
        dstArray: std::ptr::null_mut(),
        dstPitch: rows.dst_pitch,
        WidthInBytes: rows.width,
        Height: rows.height,
    };
    // SAFETY: the caller's promise; the driver copies the structure during the call.
    match check("cuMemcpy2DAsync_v2", unsafe { ffi::cuMemcpy2DAsync_v2(&parameters, stream) }) {
        // SAFETY: the caller's promise; nothing was enqueued.
        Err(error) if error.code() == Some(INVALID_VALUE) => unsafe {
            split_rows(src, dst, rows, stream, error, in_flight)
        },
        other => other,
    }
}

/// Returns the prefetch of a buffer, or why it cannot be prefetched.
fn prefetched<'a>(buffer: &RawBuffer, to: MemoryLocation) -> Result<DriverCalls<'a>> {
    let place = buffer.place();
    match buffer.device_address() {
        // Without concurrent managed access there is no host address: the driver moves such memory and refuses prefetches.
        _ if place.kind == MemoryKind::Unified && buffer.host_address().is_none() => Err(Error::new(
            ErrorKind::Unsupported,
            "unified memory can be prefetched only with concurrent managed access",
        )),
        Some(address) if place.kind == MemoryKind::Unified => {
            Ok(DriverCalls::Prefetch(address, buffer.len(), to, PrefetchTarget::new(to)?))
        }
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("only unified memory can be prefetched, to cpu or cuda:N; not {place} to {to}"),
        )),
    }
}
