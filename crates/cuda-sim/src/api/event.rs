//! Events.

use std::sync::Arc;

use super::{Handle, Pointer, count_call, find_stream, lock_driver, on_current, sticky_error, wait_for_free};
use crate::{
    code::{self, CuResult},
    op::Work,
    scheduler,
    state::{Event, Guard},
};

const DISABLE_TIMING: u32 = 2;

/// Starts a call on an event; needs no current context.
fn on_event(name: &str, event: Handle) -> CuResult<(Guard, u64)> {
    let mut state = lock_driver()?;
    let event = event.addr() as u64;
    let device = state.event(event)?.device;
    wait_for_free(&mut state, device);
    count_call(&mut state, name, device)?;
    Ok((state, event))
}

driver! {
    fn cuEventCreate(event: Pointer<usize>, flags: u32) {
        let (mut state, scope) = on_current(NAME)?;
        // Blocking synchronisation and disabled timing; interprocess events are not simulated.
        if event.is_null() || flags & !(1 | DISABLE_TIMING) != 0 {
            return Err(code::INVALID_VALUE);
        }
        let handle = state.new_handle();
        let (context, device, timing) = (scope.context, scope.device, flags & DISABLE_TIMING == 0);
        state.events.insert(handle, Event { context, device, timing, ..Event::default() });
        event.set(handle as usize)
    }

    fn cuEventDestroy_v2(event: Handle) {
        let (mut state, event) = on_event(NAME, event)?;
        state.events.remove(&event);
        state.graphs.forget_event(event);
        Ok(())
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let (mut state, event) = on_event(NAME, event)?;
        let stream = find_stream(&mut state, stream)?;
        let context = state.stream(stream)?.context;
        let found = state.event(event)?;
        if found.context != context {
            return Err(code::INVALID_HANDLE);
        }
        if state.graphs.record(event, stream)? {
            return Ok(());
        }
        let found = state.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
        found.generation += 1;
        found.time = None;
        let work = Work::Record { event, generation: found.generation };
        let point = scheduler::enqueue(&mut state, stream, NAME, work);
        let clock = scheduler::stream_clock(&state, stream).map(Arc::new);
        if let Some(found) = state.events.get_mut(&event) {
            found.record = Some(point);
            found.clock = clock;
        }
        Ok(())
    }

    fn cuEventQuery(event: Handle) {
        let (mut state, event) = on_event(NAME, event)?;
        state.graphs.check_event_query(event)?;
        let found = state.event(event)?;
        let Some(point) = found.record else { return Ok(()) };
        let (device, known) = (found.device, found.clock.clone());
        let done = scheduler::query(&mut state, point);
        sticky_error(&state, device)?;
        if !done {
            return Err(code::NOT_READY);
        }
        let ended = state.event(event)?.time.unwrap_or(0);
        let device = state.device_mut(device);
        device.now = device.now.max(ended);
        scheduler::join_host_clock(&mut state, known.as_deref());
        Ok(())
    }

    fn cuEventSynchronize(event: Handle) {
        let (mut state, event) = on_event(NAME, event)?;
        state.graphs.check_event_query(event)?;
        let found = state.event(event)?;
        let Some(point) = found.record else { return Ok(()) };
        let (device, known) = (found.device, found.clock.clone());
        scheduler::run_until(&mut state, point);
        scheduler::join_host_clock(&mut state, known.as_deref());
        super::pool::trim_to_thresholds(&mut state, device);
        sticky_error(&state, device)
    }

    fn cuEventElapsedTime(milliseconds: Pointer<f32>, start: Handle, end: Handle) {
        let (mut state, start) = on_event(NAME, start)?;
        state.graphs.check_event_query(start)?;
        state.graphs.check_event_query(end.addr() as u64)?;
        let first = state.event(start)?;
        let second = state.event(end.addr() as u64)?;
        let usable = |event: &Event| event.timing && event.record.is_some();
        if !usable(first) || !usable(second) || first.context != second.context {
            return Err(code::INVALID_HANDLE);
        }
        let (Some(first), Some(second)) = (first.time, second.time) else { return Err(code::NOT_READY) };
        let nanoseconds = second as f64 - first as f64;
        // CUDA documents a resolution of about half a microsecond.
        milliseconds.set(((nanoseconds / 500.0).round() * 500.0 / 1e6) as f32)
    }
}
