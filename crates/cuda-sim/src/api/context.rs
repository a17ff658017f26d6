//! The thread's context stack, and calls on the current context.

use super::{
    CONTEXTS, Handle, Pointer, count_call_despite_error, current_scope, lock_driver, on_current,
    sticky_error, top,
};
use crate::{
    code::{self, CuResult},
    graph, scheduler,
    state::{CHANGED, Guard, State},
};

/// Counts a call that only reads or changes the context stack, if the context is alive.
fn note(state: &mut State, name: &str, context: u64) -> CuResult {
    match state.contexts.get(&context).map(|found| found.device) {
        Some(device) => count_call_despite_error(state, name, device, false),
        None => Ok(()),
    }
}

/// Fails unless the context is alive.
fn alive(state: &State, context: u64) -> CuResult {
    state.contexts.get(&context).map(|_| ()).ok_or(code::INVALID_CONTEXT)
}

/// Waits for all work in a context, then trims its device's pools to their release thresholds.
pub(crate) fn synchronize(state: &mut Guard, context: u64, device: u32) -> CuResult {
    scheduler::synchronize_context(state, context);
    super::pool::trim_to_thresholds(state, device);
    sticky_error(state, device)
}

/// Waits for all work of the current device and of the freed memory's device, including work behind a gate, as driver
/// 580 does. With most seeds, calls of other threads block meanwhile, as they do there.
pub(crate) fn wait_to_free(state: &mut Guard, device: u32, owner: u32) -> CuResult {
    for device in [Some(device), Some(owner).filter(|owner| *owner != device)].into_iter().flatten() {
        let own = state.device_mut(device);
        own.freeing = own.rng.chance(75).then(|| std::thread::current().id());
        scheduler::run_device(state, device);
        state.device_mut(device).freeing = None;
        CHANGED.notify_all();
        super::pool::trim_to_thresholds(state, device);
    }
    sticky_error(state, device)
}

driver! {
    fn cuCtxGetCurrent(context: Pointer<usize>) {
        let mut state = lock_driver()?;
        note(&mut state, NAME, top())?;
        context.set(top() as usize)
    }

    fn cuCtxSetCurrent(context: Handle) {
        let mut state = lock_driver()?;
        let context = context.addr() as u64;
        if context != 0 {
            alive(&state, context)?;
        }
        note(&mut state, NAME, context)?;
        CONTEXTS.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        let mut state = lock_driver()?;
        let context = context.addr() as u64;
        alive(&state, context)?;
        note(&mut state, NAME, context)?;
        CONTEXTS.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Pointer<usize>) {
        let mut state = lock_driver()?;
        note(&mut state, NAME, top())?;
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(code::INVALID_CONTEXT)?;
        if context.is_null() { Ok(()) } else { context.set(popped as usize) }
    }

    fn cuCtxGetDevice(device: Pointer<i32>) {
        let mut state = lock_driver()?;
        let scope = current_scope(&state)?;
        count_call_despite_error(&mut state, NAME, scope.device, true)?;
        device.set(i32::try_from(scope.device).unwrap_or(i32::MAX))
    }

    fn cuCtxGetStreamPriorityRange(least: Pointer<i32>, greatest: Pointer<i32>) {
        let (state, scope) = on_current(NAME)?;
        let range = state.device(scope.device).options.priorities;
        if !least.is_null() {
            least.set(range.0)?;
        }
        if greatest.is_null() { Ok(()) } else { greatest.set(range.1) }
    }

    fn cuCtxSynchronize() {
        let (mut state, scope) = on_current(NAME)?;
        graph::check_context_wait(&mut state, scope.context)?;
        synchronize(&mut state, scope.context, scope.device)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let (mut state, scope) = on_current(NAME)?;
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let peer = state.contexts.get(&(peer.addr() as u64)).ok_or(code::INVALID_CONTEXT)?.device;
        if peer == scope.device {
            return Err(code::INVALID_CONTEXT);
        }
        if !state.are_peers(scope.device, peer) {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        let own = state.contexts.get_mut(&scope.context).ok_or(code::INVALID_CONTEXT)?;
        if own.peers.insert(peer) { Ok(()) } else { Err(code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuMemGetInfo_v2(free: Pointer<usize>, total: Pointer<usize>) {
        let (state, scope) = on_current(NAME)?;
        let device = state.device(scope.device);
        let all = device.options.total_memory;
        free.set(all.saturating_sub(usize::try_from(device.used).unwrap_or(usize::MAX)))?;
        total.set(all)
    }
}
