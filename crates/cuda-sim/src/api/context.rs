//! The thread's stack of contexts, and what is asked of the current one.

use super::{
    CONTEXTS, Handle, Pointer, after_wait, attribute_calmly, begin, current_scope, device_of, finish,
    on_current, top,
};
use crate::{
    code::{self, Answer},
    graph, scheduler,
    state::{CHANGED, Guard, State},
};

/// Counts a call that only looks at or moves the stack, for the device of a context if it still is there.
fn note(state: &mut State, name: &str, context: u64) -> Answer {
    match state.contexts.get(&context).map(|found| found.device) {
        Some(device) => attribute_calmly(state, name, device, false),
        None => Ok(()),
    }
}

/// A context by its handle, which must be alive.
fn alive(state: &State, context: u64) -> Answer {
    state.contexts.get(&context).map(|_| ()).ok_or(code::INVALID_CONTEXT)
}

pub(crate) extern "C" fn cuCtxGetCurrent(context: Pointer<usize>) -> u32 {
    finish(|| {
        let mut state = begin()?;
        note(&mut state, "cuCtxGetCurrent", top())?;
        context.set(top() as usize)
    })
}

pub(crate) extern "C" fn cuCtxSetCurrent(context: Handle) -> u32 {
    finish(|| {
        let mut state = begin()?;
        let context = context.addr() as u64;
        if context != 0 {
            alive(&state, context)?;
        }
        note(&mut state, "cuCtxSetCurrent", context)?;
        CONTEXTS.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    })
}

pub(crate) extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> u32 {
    finish(|| {
        let mut state = begin()?;
        let context = context.addr() as u64;
        alive(&state, context)?;
        note(&mut state, "cuCtxPushCurrent_v2", context)?;
        CONTEXTS.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    })
}

pub(crate) extern "C" fn cuCtxPopCurrent_v2(context: Pointer<usize>) -> u32 {
    finish(|| {
        let mut state = begin()?;
        note(&mut state, "cuCtxPopCurrent_v2", top())?;
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(code::INVALID_CONTEXT)?;
        if context.is_null() { Ok(()) } else { context.set(popped as usize) }
    })
}

pub(crate) extern "C" fn cuCtxGetDevice(device: Pointer<i32>) -> u32 {
    finish(|| {
        let mut state = begin()?;
        let scope = current_scope(&state)?;
        attribute_calmly(&mut state, "cuCtxGetDevice", scope.device, true)?;
        device.set(i32::try_from(scope.device).unwrap_or(i32::MAX))
    })
}

pub(crate) extern "C" fn cuCtxGetFlags(flags: Pointer<u32>) -> u32 {
    finish(|| {
        let (state, scope) = on_current("cuCtxGetFlags")?;
        flags.set(state.device(scope.device).primary_flags)
    })
}

pub(crate) extern "C" fn cuCtxGetApiVersion(context: Handle, version: Pointer<u32>) -> u32 {
    finish(|| {
        let state = begin()?;
        let context = if context.is_null() { current_scope(&state)?.context } else { context.addr() as u64 };
        alive(&state, context)?;
        version.set(3020)
    })
}

pub(crate) extern "C" fn cuCtxGetId(context: Handle, id: Pointer<u64>) -> u32 {
    finish(|| {
        let state = begin()?;
        let context = if context.is_null() { current_scope(&state)?.context } else { context.addr() as u64 };
        state.contexts.get(&context).ok_or(code::CONTEXT_IS_DESTROYED)?;
        id.set(context)
    })
}

pub(crate) extern "C" fn cuCtxGetStreamPriorityRange(least: Pointer<i32>, greatest: Pointer<i32>) -> u32 {
    finish(|| {
        let (state, scope) = on_current("cuCtxGetStreamPriorityRange")?;
        let range = state.device(scope.device).options.priorities;
        if !least.is_null() {
            least.set(range.0)?;
        }
        if greatest.is_null() { Ok(()) } else { greatest.set(range.1) }
    })
}

pub(crate) extern "C" fn cuCtxSynchronize() -> u32 {
    finish(|| {
        let (mut state, scope) = on_current("cuCtxSynchronize")?;
        graph::admit_context(&mut state, scope.context)?;
        synchronize(&mut state, scope.context, scope.device)
    })
}

/// Waits for everything in a context, and lets its device's pools give back what they keep beyond their thresholds.
pub(crate) fn synchronize(state: &mut Guard, context: u64, device: u32) -> Answer {
    scheduler::force_context(state, context);
    super::pool::settle(state, device);
    after_wait(state, device)
}

/// Waits for all work of the current device and of the one that memory to be freed belongs to, gated streams included, as
/// driver 580 does. For most seeds the calls of other threads stand still meanwhile, as they do there.
pub(crate) fn wait_to_free(state: &mut Guard, device: u32, owner: u32) -> Answer {
    for device in [Some(device), Some(owner).filter(|owner| *owner != device)].into_iter().flatten() {
        let own = state.device_mut(device);
        own.freeing = own.rng.chance(75).then(|| std::thread::current().id());
        scheduler::force_device(state, device);
        state.device_mut(device).freeing = None;
        CHANGED.notify_all();
        super::pool::settle(state, device);
    }
    after_wait(state, device)
}

pub(crate) extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) -> u32 {
    finish(|| {
        let (mut state, scope) = on_current("cuCtxEnablePeerAccess")?;
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let peer = state.contexts.get(&(peer.addr() as u64)).ok_or(code::INVALID_CONTEXT)?.device;
        if peer == scope.device {
            return Err(code::INVALID_CONTEXT);
        }
        if !state.device(scope.device).options.peers || !state.device(peer).options.peers {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        let own = state.contexts.get_mut(&scope.context).ok_or(code::INVALID_CONTEXT)?;
        if own.peers.insert(peer) { Ok(()) } else { Err(code::PEER_ACCESS_ALREADY_ENABLED) }
    })
}

pub(crate) extern "C" fn cuCtxDisablePeerAccess(peer: Handle) -> u32 {
    finish(|| {
        let (mut state, scope) = on_current("cuCtxDisablePeerAccess")?;
        let peer = state.contexts.get(&(peer.addr() as u64)).ok_or(code::INVALID_CONTEXT)?.device;
        let own = state.contexts.get_mut(&scope.context).ok_or(code::INVALID_CONTEXT)?;
        if own.peers.remove(&peer) { Ok(()) } else { Err(code::PEER_ACCESS_NOT_ENABLED) }
    })
}

pub(crate) extern "C" fn cuMemGetInfo_v2(free: Pointer<usize>, total: Pointer<usize>) -> u32 {
    finish(|| {
        let (state, scope) = on_current("cuMemGetInfo_v2")?;
        let device = state.device(scope.device);
        let all = device.options.total_memory;
        free.set(all.saturating_sub(usize::try_from(device.used).unwrap_or(usize::MAX)))?;
        total.set(all)
    })
}

pub(crate) extern "C" fn cuDeviceGetMemPool(pool: Pointer<usize>, device: i32) -> u32 {
    finish(|| {
        let mut state = begin()?;
        let device = device_of(&state, device)?;
        attribute_calmly(&mut state, "cuDeviceGetMemPool", device, true)?;
        let device = state.device(device);
        if !device.options.pools {
            return Err(code::NOT_SUPPORTED);
        }
        pool.set(device.current_pool as usize)
    })
}
