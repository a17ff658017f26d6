//! Pointer attributes.

use super::{Pointer, count_call_despite_error, lock_driver};
use crate::{code, memory::Kind};

driver! {
    fn cuPointerGetAttribute(data: Pointer<u64>, attribute: u32, pointer: u64) {
        let mut state = lock_driver()?;
        let device = state.memory.find(pointer).map(|found| found.device).ok_or(code::INVALID_VALUE)?;
        count_call_despite_error(&mut state, NAME, device, true)?;
        let found = state.memory.find(pointer).ok_or(code::INVALID_VALUE)?;
        match attribute {
            1 => data.set(found.context),
            // Memory type: managed memory counts as device memory.
            2 => {
                let host = matches!(found.kind, Kind::Pinned { .. } | Kind::Registered { .. });
                data.cast::<u32>().set(if host { 1 } else { 2 })
            }
            3 => data.set(pointer),
            4 if found.is_device() => Err(code::INVALID_VALUE),
            4 => data.set(pointer),
            6 => data.cast::<u32>().set(0),
            7 => data.set(found.id),
            8 => data.cast::<u32>().set(u32::from(matches!(found.kind, Kind::Managed(_)))),
            9 => data.cast::<u32>().set(found.device),
            11 => data.set(found.base),
            12 => data.cast::<usize>().set(found.bytes),
            13 => data.cast::<u32>().set(1),
            // `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`: driver 580 returns read and write also to contexts without access.
            16 => data.cast::<u32>().set(3),
            17 => data.set(match found.kind {
                Kind::Pool(pool) => pool,
                _ => 0,
            }),
            _ => Err(code::INVALID_VALUE),
        }
    }
}
