//! Memory of another API, imported by a file descriptor.

use std::ffi::c_int;

use super::{
    Handle, Pointer,
    memory::{charge, insert_external},
    on_current,
};
use crate::{code, memory::Kind};

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
const OPAQUE_FD: u32 = 1;

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, of which the handle is a union.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryDescription {
    kind: u32,
    handle: [u64; 2],
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BufferDescription {
    offset: u64,
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// Imported memory.
#[derive(Debug)]
pub(crate) struct External {
    pub(crate) device: u32,
    bytes: u64,
    start: std::ptr::NonNull<u8>,
}

// SAFETY: the memory is not bound to a thread.
unsafe impl Send for External {}

driver! {
    /// Takes the descriptor if it succeeds.
    fn cuImportExternalMemory(memory: Pointer<Handle>, description: Pointer<MemoryDescription>) {
        let (mut state, scope) = on_current(NAME)?;
        let MemoryDescription { kind, handle: [fd, _], bytes, .. } = description.get()?;
        let open = state.device(scope.device).options.external_memory.ok_or(code::NOT_SUPPORTED)?;
        if kind != OPAQUE_FD || bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let start = open(fd as c_int, bytes).ok_or(code::INVALID_VALUE)?;
        let number = state.new_handle();
        state.external.insert(number, External { device: scope.device, bytes, start });
        memory.set(std::ptr::without_provenance_mut(number as usize))
    }

    fn cuExternalMemoryGetMappedBuffer(pointer: Pointer<u64>, memory: Handle, description: Pointer<BufferDescription>) {
        let (mut state, scope) = on_current(NAME)?;
        let BufferDescription { offset, bytes, .. } = description.get()?;
        let external = state.external.get(&(memory.addr() as u64)).ok_or(code::INVALID_HANDLE)?;
        let end = offset.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
        if external.device != scope.device || bytes == 0 || end > external.bytes {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the opener promised so many bytes.
        let start = unsafe { external.start.add(offset as usize) };
        let charge = charge(&state, scope.device, bytes as usize)?;
        let base = insert_external(&mut state, start, scope.entry(bytes as usize, Kind::Device))?;
        state.device_mut(scope.device).used += charge;
        pointer.set(base)
    }

    /// The mapped buffers are freed before.
    fn cuDestroyExternalMemory(memory: Handle) {
        let (mut state, _) = on_current(NAME)?;
        state.external.remove(&(memory.addr() as u64)).map(|_| ()).ok_or(code::INVALID_HANDLE)
    }
}
