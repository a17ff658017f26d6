//! Streams and host functions.

use std::ffi::c_void;

use super::{Handle, Pointer, on_current, on_stream, pool, sticky_error};
use crate::{
    code::{self, CuResult},
    op::{HostCall, HostFunction, Work},
    scheduler,
    state::{State, StreamKind},
};

const NON_BLOCKING: u32 = 1;

fn create(name: &str, stream: Pointer<usize>, flags: u32, priority: i32) -> CuResult {
    let (mut state, scope) = on_current(name)?;
    if stream.is_null() || flags & !NON_BLOCKING != 0 {
        return Err(code::INVALID_VALUE);
    }
    let (least, greatest) = state.device(scope.device).options.priorities;
    let priority = priority.max(greatest).min(least);
    let kind = if flags == NON_BLOCKING { StreamKind::NonBlocking } else { StreamKind::Blocking };
    let handle = state.add_stream(scope.context, scope.device, kind, priority, true);
    stream.set(handle as usize)
}

/// Checks the address of a word.
fn check_word(state: &State, address: u64) -> CuResult {
    let is_known = state.memory.resolve(address, 4)?.is_some();
    if is_known && address.is_multiple_of(4) { Ok(()) } else { Err(code::INVALID_VALUE) }
}

driver! {
    fn cuStreamCreate(stream: Pointer<usize>, flags: u32) {
        create(NAME, stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Pointer<usize>, flags: u32, priority: i32) {
        create(NAME, stream, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        if (stream.addr() as u64) <= 2 {
            return Err(code::INVALID_HANDLE);
        }
        let (mut state, stream) = on_stream(NAME, stream)?;
        if !state.stream(stream)?.created {
            return Err(code::INVALID_HANDLE);
        }
        state.destroy_stream(stream);
        Ok(())
    }

    fn cuStreamQuery(stream: Handle) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        let device = state.stream(stream)?.device;
        let point = scheduler::end_of(&state, stream);
        let known = scheduler::stream_clock(&state, stream);
        let done = scheduler::query(&mut state, point);
        sticky_error(&state, device)?;
        if !done {
            return Err(code::NOT_READY);
        }
        scheduler::join_host_clock(&mut state, known.as_ref());
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        let device = state.stream(stream)?.device;
        let point = scheduler::end_of(&state, stream);
        let waited = super::copy::wait(&mut state, stream, point);
        pool::trim_to_thresholds(&mut state, device);
        waited
    }

    fn cuStreamGetPriority(stream: Handle, priority: Pointer<i32>) {
        let (state, stream) = on_stream(NAME, stream)?;
        priority.set(state.stream(stream)?.priority)
    }

    fn cuStreamGetFlags(stream: Handle, flags: Pointer<u32>) {
        let (state, stream) = on_stream(NAME, stream)?;
        let kind = state.stream(stream)?.kind;
        flags.set(if kind == StreamKind::NonBlocking { NON_BLOCKING } else { 0 })
    }

    fn cuStreamGetCtx(stream: Handle, context: Pointer<usize>) {
        let (state, stream) = on_stream(NAME, stream)?;
        context.set(state.stream(stream)?.context as usize)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        // Flag 1 requests an external node in a captured graph.
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        let handle = event.addr() as u64;
        let event = state.event(handle)?;
        let recorded = event.record.is_some();
        if state.graphs.wait(stream, handle, recorded)? {
            // External nodes are not simulated.
            return if flags == 0 { Ok(()) } else { Err(code::NOT_SUPPORTED) };
        }
        let event = state.event(handle)?;
        let Some(point) = event.record else { return Ok(()) };
        let known = event.clock.clone();
        let after = vec![point];
        scheduler::enqueue_after(&mut state, stream, NAME, Work::Wait, after, known.as_deref());
        Ok(())
    }

    fn cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: u32) {
        /// At least the value, and equal to it.
        const KNOWN: u32 = 1;
        let (mut state, stream) = on_stream(NAME, stream)?;
        check_word(&state, address)?;
        // Bits and flushes of remote writes are not simulated.
        if flags > KNOWN {
            return Err(code::NOT_SUPPORTED);
        }
        let wait = Work::Word { address, value, equal: flags == KNOWN };
        scheduler::enqueue(&mut state, stream, NAME, wait);
        Ok(())
    }

    fn cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: u32) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        check_word(&state, address)?;
        // A write without a barrier is not simulated.
        if flags != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let written = scheduler::enqueue(&mut state, stream, NAME, Work::WriteWord { address, value });
        // Who polls the word makes no call: the seed chooses whether the device gets there by itself.
        let _is_written = scheduler::query(&mut state, written);
        Ok(())
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) {
        let (mut state, stream) = on_stream(NAME, stream)?;
        let function = function.ok_or(code::INVALID_VALUE)?;
        let call = HostCall { function, data: data.expose_provenance() };
        scheduler::enqueue(&mut state, stream, NAME, Work::Host(call));
        Ok(())
    }
}
