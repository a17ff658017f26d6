//! Copies. The kinds of memory decide whether a call returns before its copy is complete.

use std::ffi::c_void;

use super::{Handle, Pointer, Scope, on_current, on_current_stream, on_stream, sticky_error, top};
use crate::{
    code::{self, CuResult},
    execute,
    memory::{Kind, Memory},
    op::{Copy, Operand, Work},
    scheduler,
    state::{Guard, State},
};

/// Pageable sources up to this size in bytes are always staged: the call returns before the copy.
const ALWAYS_STAGED: usize = 64 << 10;
/// Larger pageable sources, in bytes, are never staged.
const MAX_STAGED: usize = 16 << 20;

/// A source or destination pointer, by the kinds of memory that the call accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyPointer {
    /// A host pointer.
    Host(u64),
    /// A device pointer, or pinned or managed host memory.
    Device(u64),
    /// A pointer to any memory.
    Any(u64),
}

/// The rectangle of a copy; a linear copy is one row.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) from_pitch: usize,
    pub(crate) to_pitch: usize,
}

impl Shape {
    pub(crate) fn linear(bytes: usize) -> Self {
        Self { width: bytes, height: 1, from_pitch: 0, to_pitch: 0 }
    }

    fn span(&self, pitch: usize) -> CuResult<usize> {
        let rows = self.height.saturating_sub(1).checked_mul(pitch).ok_or(code::INVALID_VALUE)?;
        rows.checked_add(self.width).ok_or(code::INVALID_VALUE)
    }
}

/// The memory that a pointer refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryClass {
    Device(u32),
    Pinned,
    Managed,
    Pageable,
}

fn classify(state: &State, side: CopyPointer, bytes: usize) -> CuResult<MemoryClass> {
    let (CopyPointer::Host(address) | CopyPointer::Device(address) | CopyPointer::Any(address)) = side;
    let found = classify_at(&state.memory, address, bytes)?;
    match (side, found) {
        (CopyPointer::Host(_), MemoryClass::Device(_)) | (CopyPointer::Device(_), MemoryClass::Pageable) => {
            Err(code::INVALID_VALUE)
        }
        (_, MemoryClass::Pageable) => {
            let unmapped = address == 0 || state.devices.iter().any(|device| device.space.contains(address));
            if unmapped { Err(code::INVALID_VALUE) } else { Ok(found) }
        }
        _ => Ok(found),
    }
}

fn classify_at(memory: &Memory, address: u64, bytes: usize) -> CuResult<MemoryClass> {
    Ok(match memory.resolve(address, bytes)? {
        Some(allocation) if allocation.is_device() => MemoryClass::Device(allocation.device),
        Some(allocation) if matches!(allocation.kind, Kind::Managed(_)) => MemoryClass::Managed,
        Some(_) => MemoryClass::Pinned,
        None => MemoryClass::Pageable,
    })
}

/// The variant of the copy function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Asynchronous,
    Synchronous,
}

/// Checks a copy, enqueues it and waits like the driver.
pub(crate) fn copy(
    state: &mut Guard,
    name: &'static str,
    stream: u64,
    (to, from): (CopyPointer, CopyPointer),
    shape: Shape,
    mode: Mode,
) -> CuResult {
    if shape.width == 0 || shape.height == 0 {
        return Ok(());
    }
    let bytes = shape.width.checked_mul(shape.height).ok_or(code::INVALID_VALUE)?;
    let source = classify(state, from, shape.span(shape.from_pitch)?)?;
    let target = classify(state, to, shape.span(shape.to_pitch)?)?;
    let captured = state.graphs.is_capturing(stream);
    if captured && [source, target].contains(&MemoryClass::Pageable) {
        return Err(state.graphs.invalidate_capture_of(stream));
    }
    let (CopyPointer::Host(from) | CopyPointer::Device(from) | CopyPointer::Any(from)) = from;
    let (CopyPointer::Host(to) | CopyPointer::Device(to) | CopyPointer::Any(to)) = to;
    let on_host = |found| !matches!(found, MemoryClass::Device(_));
    let device = state.stream(stream)?.device;
    let pinned = |found| matches!(found, MemoryClass::Pinned | MemoryClass::Pageable);
    let mut waits = match mode {
        // A graph node runs when the graph does.
        _ if captured => HostWait::None,
        // Copies within device memory are asynchronous to the host even in the synchronous functions.
        Mode::Synchronous if on_host(source) || on_host(target) => HostWait::Ordered,
        // Copies between host memory are synchronous, as are copies to pageable memory.
        _ if target == MemoryClass::Pageable || (pinned(source) && pinned(target)) => HostWait::Ordered,
        _ if on_host(source) && on_host(target) && state.device_mut(device).rng.chance(50) => {
            HostWait::Unordered
        }
        _ => HostWait::None,
    };
    let mut shape = shape;
    let corrupts = match (source, target) {
        (MemoryClass::Device(from), MemoryClass::Device(to)) if from != to => {
            [from, to].into_iter().any(|device| state.device(device).options.corrupt_peer_copies)
        }
        _ => false,
    };
    let place = match source {
        MemoryClass::Pageable if !pinned(target) => {
            if mode == Mode::Synchronous {
                let before = scheduler::end_of(state, stream);
                wait(state, stream, before)?;
            }
            // The call may return once the source is read. Whether it waits longer is unspecified.
            let staged = bytes <= ALWAYS_STAGED && !on_host(target);
            let drawn = if staged { 0 } else { state.device_mut(device).rng.below(3) };
            waits = HostWait::None;
            if drawn == 2 || bytes > MAX_STAGED {
                waits = HostWait::Unordered;
                Operand::Pageable(from as usize)
            } else {
                if drawn == 1 {
                    scheduler::run_until(state, scheduler::end_of(state, stream));
                }
                let staged = stage(from, shape);
                shape.from_pitch = shape.width;
                Operand::Staged(staged)
            }
        }
        MemoryClass::Pageable => Operand::Pageable(from as usize),
        _ => Operand::Address(from),
    };
    let target =
        if target == MemoryClass::Pageable { Operand::Pageable(to as usize) } else { Operand::Address(to) };
    let Shape { width, height, from_pitch, to_pitch } = shape;
    let copy = Copy { from: place, to: target, width, height, from_pitch, to_pitch, done: 0, corrupts };
    let work = Work::Copies(vec![copy]);
    let point = scheduler::enqueue(state, stream, name, work);
    match waits {
        HostWait::None => Ok(()),
        HostWait::Unordered => {
            scheduler::run_until(state, point);
            sticky_error(state, device)
        }
        HostWait::Ordered => wait(state, stream, point),
    }
}

/// Whether the host waits for a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostWait {
    None,
    /// It waits, but CUDA does not guarantee that: later host accesses are not ordered after the copy.
    Unordered,
    /// It waits, as documented.
    Ordered,
}

/// Waits until a stream has reached a point.
pub(crate) fn wait(state: &mut Guard, stream: u64, point: crate::op::Point) -> CuResult {
    let device = state.streams.get(&stream).map(|own| own.device);
    let known = scheduler::stream_clock(state, stream);
    scheduler::run_until(state, point);
    scheduler::join_host_clock(state, known.as_ref());
    device.map_or(Ok(()), |device| sticky_error(state, device))
}

/// Reads pageable memory of the caller, row by row.
fn stage(from: u64, shape: Shape) -> Vec<u8> {
    let mut staged = Vec::with_capacity(shape.width * shape.height);
    for row in 0..shape.height {
        let start: *const u8 = std::ptr::with_exposed_provenance(from as usize + row * shape.from_pitch);
        // SAFETY: the caller promises that the source can be read for the length of the call.
        staged.extend_from_slice(unsafe { std::slice::from_raw_parts(start, shape.width) });
    }
    staged
}

fn host(pointer: *const c_void) -> CopyPointer {
    CopyPointer::Host(pointer.expose_provenance() as u64)
}

/// Enqueues a copy between host and device. Without a current context, driver 580 uses the stream's; otherwise it
/// refuses a stream of another device.
fn enqueue_host_copy(
    name: &'static str,
    stream: Handle,
    sides: (CopyPointer, CopyPointer),
    bytes: usize,
) -> CuResult {
    let (mut state, stream) = on_stream(name, stream)?;
    let own = state.streams.get(&stream).map(|stream| stream.device);
    let current = state.contexts.get(&top()).map(|context| context.device);
    if current.is_some() && current != own {
        return Err(code::INVALID_VALUE);
    }
    copy(&mut state, name, stream, sides, Shape::linear(bytes), Mode::Asynchronous)
}

/// Runs a synchronous copy on the default stream.
fn synchronous(name: &'static str, sides: (CopyPointer, CopyPointer), bytes: usize) -> CuResult {
    let (mut state, scope) = on_current(name)?;
    let stream = legacy(&state, scope)?;
    copy(&mut state, name, stream, sides, Shape::linear(bytes), Mode::Synchronous)
}

/// Returns the legacy default stream of a context.
pub(crate) fn legacy(state: &State, scope: Scope) -> CuResult<u64> {
    state.contexts.get(&scope.context).map(|context| context.legacy).ok_or(code::INVALID_CONTEXT)
}

/// Fails if a device-to-device copy accesses memory of another device's pool, which grants no access. Other memory is copied without access, too
/// (driver 580).
pub(crate) fn reachable(state: &State, scope: Scope, to: u64, from: u64) -> CuResult {
    let reaches = [to, from].into_iter().all(|address| {
        state.memory.find(address).is_none_or(|found| {
            !matches!(found.kind, Kind::Pool(_))
                || execute::reaches(state, scope.device, scope.context, found)
        })
    });
    if reaches { Ok(()) } else { Err(code::INVALID_VALUE) }
}

/// `CUDA_MEMCPY2D`, with its enums as integers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2D {
    from: Operand2D,
    to: Operand2D,
    width: usize,
    height: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Operand2D {
    x_in_bytes: usize,
    y: usize,
    memory_type: u32,
    host: *mut c_void,
    device: u64,
    array: usize,
    pitch: usize,
}

impl Operand2D {
    /// Returns the address of the first row, and the pitch. Memory types: 1 host, 2 device, 4 unified.
    fn first_row(&self, width: usize, height: usize) -> CuResult<(CopyPointer, usize)> {
        let pitch = if self.pitch == 0 && height == 1 { width } else { self.pitch };
        if pitch < width.saturating_add(self.x_in_bytes) && height > 1 {
            return Err(code::INVALID_VALUE);
        }
        let offset = self.y.checked_mul(pitch).and_then(|rows| rows.checked_add(self.x_in_bytes));
        let offset = offset.ok_or(code::INVALID_VALUE)? as u64;
        let side = match self.memory_type {
            1 => CopyPointer::Host(self.host.expose_provenance() as u64 + offset),
            2 => CopyPointer::Device(self.device + offset),
            4 => CopyPointer::Any(self.device + offset),
            _ => return Err(code::NOT_SUPPORTED),
        };
        Ok((side, pitch))
    }
}

fn copy_2d(
    state: &mut Guard,
    name: &'static str,
    stream: u64,
    wanted: Pointer<Copy2D>,
    mode: Mode,
) -> CuResult {
    let wanted = wanted.get()?;
    let (from, from_pitch) = wanted.from.first_row(wanted.width, wanted.height)?;
    let (to, to_pitch) = wanted.to.first_row(wanted.width, wanted.height)?;
    let shape = Shape { width: wanted.width, height: wanted.height, from_pitch, to_pitch };
    copy(state, name, stream, (to, from), shape, mode)
}

driver! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) {
        enqueue_host_copy(NAME, stream, (CopyPointer::Device(to), host(from)), bytes)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) {
        enqueue_host_copy(NAME, stream, (host(to), CopyPointer::Device(from)), bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        let (mut state, scope, stream) = on_current_stream(NAME, stream)?;
        reachable(&state, scope, to, from)?;
        let sides = (CopyPointer::Device(to), CopyPointer::Device(from));
        copy(&mut state, NAME, stream, sides, Shape::linear(bytes), Mode::Asynchronous)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        let (mut state, scope, stream) = on_current_stream(NAME, stream)?;
        reachable(&state, scope, to, from)?;
        let sides = (CopyPointer::Any(to), CopyPointer::Any(from));
        copy(&mut state, NAME, stream, sides, Shape::linear(bytes), Mode::Asynchronous)
    }

    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: Handle,
        from: u64,
        from_context: Handle,
        bytes: usize,
        stream: Handle,
    ) {
        let (mut state, _, stream) = on_current_stream(NAME, stream)?;
        for (address, context) in [(to, to_context), (from, from_context)] {
            let named = state.contexts.get(&(context.addr() as u64)).ok_or(code::INVALID_CONTEXT)?.device;
            let lies_there =
                state.memory.find(address).is_some_and(|found| !found.is_device() || found.device == named);
            if !lies_there {
                return Err(code::INVALID_VALUE);
            }
        }
        if state.graphs.is_capturing(stream) {
            // As on driver 580.
            return Err(state.graphs.invalidate_capture_of(stream));
        }
        let sides = (CopyPointer::Device(to), CopyPointer::Device(from));
        copy(&mut state, NAME, stream, sides, Shape::linear(bytes), Mode::Asynchronous)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        synchronous(NAME, (CopyPointer::Device(to), host(from)), bytes)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        synchronous(NAME, (host(to), CopyPointer::Device(from)), bytes)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        let (mut state, scope) = on_current(NAME)?;
        reachable(&state, scope, to, from)?;
        let stream = legacy(&state, scope)?;
        let sides = (CopyPointer::Device(to), CopyPointer::Device(from));
        copy(&mut state, NAME, stream, sides, Shape::linear(bytes), Mode::Synchronous)
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        synchronous(NAME, (CopyPointer::Any(to), CopyPointer::Any(from)), bytes)
    }

    fn cuMemcpy2DAsync_v2(wanted: Pointer<Copy2D>, stream: Handle) {
        let (mut state, _, stream) = on_current_stream(NAME, stream)?;
        copy_2d(&mut state, NAME, stream, wanted, Mode::Asynchronous)
    }
}
