//! Versions, error names and devices.

use std::ffi::c_char;

use super::{Pointer, device_of, lock_driver, on_device};
use crate::{
    code::{self, CuResult},
    install,
    state::{self, Device},
};

fn describe(found: Option<&'static std::ffi::CStr>, text: Pointer<*const c_char>) -> CuResult {
    match found {
        Some(found) => text.set(found.as_ptr()),
        None => {
            text.set(std::ptr::null())?;
            Err(code::INVALID_VALUE)
        }
    }
}

/// Stores a string with its terminator, truncated to `length`.
fn put_text(to: Pointer<u8>, length: i32, text: &str) -> CuResult {
    let room = usize::try_from(length).ok().filter(|room| *room > 0).ok_or(code::INVALID_VALUE)?;
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    for (index, byte) in bytes.iter().enumerate() {
        to.set_at(index, *byte)?;
    }
    to.set_at(bytes.len(), 0)
}

/// Stores the UUID that was set, or one made of a constant and the ordinal: the same in every process, like a real device's.
fn put_uuid(name: &str, uuid: Pointer<[u8; 16]>, device: i32) -> CuResult {
    let (state, device) = on_device(name, device)?;
    let mut bytes = *b"SIMULATED-00\0\0\0\0";
    bytes[12..].copy_from_slice(&device.to_be_bytes());
    uuid.set(state.device(device).options.uuid.unwrap_or(bytes))
}

/// Returns a `CUdevice_attribute`.
fn attribute_of(device: &Device, ordinal: u32, attribute: u32) -> CuResult<i32> {
    let options = &device.options;
    Ok(match attribute {
        // Maximum threads per block; block and grid dimensions.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory per block, constant memory, warp size, pitch, registers per block, clock rate.
        8 => 49_152,
        9 | 12 => 65_536,
        10 => 32,
        11 => i32::MAX,
        13 => 1_980_000,
        16 => options.multiprocessors,
        39 => 2_048,
        // No kernel timeout; not integrated; can map host memory; default compute mode.
        17 | 18 | 20 => 0,
        19 => 1,
        // PCI bus and device ids, and the domain.
        33 => (ordinal & 0xFF) as i32,
        34 => 0,
        50 => (0xF000 + (ordinal >> 8)) as i32,
        40 => options.copy_engines,
        41 => 1,
        75 => options.capability.0,
        76 => options.capability.1,
        78 => i32::from(options.priorities.0 != options.priorities.1),
        83 => i32::from(options.managed),
        // Native host atomics, host page tables, direct managed memory access from the host.
        86 | 100 | 101 => i32::from(options.coherent),
        88 => i32::from(options.pageable_access),
        89 => i32::from(options.concurrent_managed),
        // A registered host pointer is valid on the device.
        91 => 1,
        99 => i32::from(options.host_register),
        // Virtual memory management.
        102 => 0,
        113 => i32::from(options.read_only_register),
        115 => i32::from(options.pools),
        // No closest NUMA node.
        134 => -1,
        _ => return Err(code::INVALID_VALUE),
    })
}

driver! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        match install::options().init_code {
            code::SUCCESS => {
                state::lock().initialised = true;
                Ok(())
            }
            failure => Err(failure),
        }
    }

    fn cuDriverGetVersion(version: Pointer<i32>) {
        version.set(install::options().version)
    }

    fn cuGetErrorName(error: u32, text: Pointer<*const c_char>) {
        describe(code::name(error), text)
    }

    fn cuGetErrorString(error: u32, text: Pointer<*const c_char>) {
        describe(code::text(error), text)
    }

    fn cuDeviceGet(device: Pointer<i32>, ordinal: i32) {
        let (_state, _) = on_device(NAME, ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Pointer<i32>) {
        let state = lock_driver()?;
        count.set(i32::try_from(state.devices.len()).unwrap_or(i32::MAX))
    }

    fn cuDeviceGetName(name: Pointer<u8>, length: i32, device: i32) {
        let (state, device) = on_device(NAME, device)?;
        put_text(name, length, &state.device(device).options.name)
    }

    fn cuDeviceGetPCIBusId(text: Pointer<u8>, length: i32, device: i32) {
        let (_state, device) = on_device(NAME, device)?;
        put_text(text, length, &format!("{:04X}:{:02X}:00.0", 0xF000 + (device >> 8), device & 0xFF))
    }

    fn cuDeviceGetUuid_v2(uuid: Pointer<[u8; 16]>, device: i32) {
        put_uuid(NAME, uuid, device)
    }

    /// That of the whole GPU, of which the device may be a MIG device.
    fn cuDeviceGetUuid(uuid: Pointer<[u8; 16]>, device: i32) {
        drop(on_device(NAME, device)?);
        uuid.set(*b"WHOLE GPU\0\0\0\0\0\0\0")
    }

    fn cuDeviceTotalMem_v2(bytes: Pointer<usize>, device: i32) {
        let (state, device) = on_device(NAME, device)?;
        bytes.set(state.device(device).options.total_memory)
    }

    fn cuDeviceGetAttribute(value: Pointer<i32>, attribute: u32, device: i32) {
        let (state, ordinal) = on_device(NAME, device)?;
        value.set(attribute_of(state.device(ordinal), ordinal, attribute)?)
    }

    fn cuDeviceCanAccessPeer(can: Pointer<i32>, device: i32, peer: i32) {
        let (state, device) = on_device(NAME, device)?;
        let peer = device_of(&state, peer)?;
        can.set(i32::from(state.are_peers(device, peer)))
    }

    fn cuDevicePrimaryCtxRetain(context: Pointer<usize>, device: i32) {
        let (mut state, device) = on_device(NAME, device)?;
        if context.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let handle = state.retain_primary(device);
        context.set(handle as usize)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let (mut state, device) = on_device(NAME, device)?;
        let primary = state.device_mut(device).primary.as_mut().ok_or(code::INVALID_CONTEXT)?;
        primary.retained -= 1;
        if primary.retained == 0 {
            let context = primary.context;
            crate::scheduler::synchronize_context(&mut state, context);
            // Another thread may have retained it while a host function ran.
            if state.device(device).primary.as_ref().is_some_and(|primary| primary.retained == 0) {
                state.destroy_context(context);
            }
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Pointer<u32>, active: Pointer<i32>) {
        let (state, device) = on_device(NAME, device)?;
        let device = state.device(device);
        flags.set(0)?;
        active.set(i32::from(device.primary.is_some()))
    }
}
