//! Fills with patterns of 1, 2 or 4 bytes.

use super::{Handle, copy, on_current, on_current_stream};
use crate::{
    code::{self, CuResult},
    op::{Fill, Work},
    scheduler,
    state::Guard,
};

fn fill(state: &mut Guard, name: &'static str, stream: u64, fill: Fill, synchronous: bool) -> CuResult {
    let bytes = fill.width.checked_mul(fill.element).ok_or(code::INVALID_VALUE)?;
    if bytes == 0 {
        return Ok(());
    }
    if !fill.address.is_multiple_of(fill.element as u64) {
        return Err(code::INVALID_VALUE);
    }
    let target = state.memory.resolve(fill.address, bytes)?.ok_or(code::INVALID_VALUE)?;
    // Only fills of host memory are synchronous.
    let waits = synchronous && !target.is_device();
    let point = scheduler::enqueue(state, stream, name, Work::Fill(fill));
    if waits { copy::wait(state, stream, point) } else { Ok(()) }
}

fn synchronous(name: &'static str, wanted: Fill) -> CuResult {
    let (mut state, scope) = on_current(name)?;
    let stream = copy::legacy(&state, scope)?;
    fill(&mut state, name, stream, wanted, true)
}

fn asynchronous(name: &'static str, wanted: Fill, stream: Handle) -> CuResult {
    let (mut state, _, stream) = on_current_stream(name, stream)?;
    fill(&mut state, name, stream, wanted, false)
}

fn bytes(address: u64, value: u8, width: usize) -> Fill {
    Fill { address, pattern: [value; 4], element: 1, width }
}

fn shorts(address: u64, value: u16, width: usize) -> Fill {
    let [low, high] = value.to_ne_bytes();
    Fill { address, pattern: [low, high, low, high], element: 2, width }
}

fn words(address: u64, value: u32, width: usize) -> Fill {
    Fill { address, pattern: value.to_ne_bytes(), element: 4, width }
}

driver! {
    fn cuMemsetD8_v2(address: u64, value: u8, count: usize) {
        synchronous(NAME, bytes(address, value, count))
    }

    fn cuMemsetD16_v2(address: u64, value: u16, count: usize) {
        synchronous(NAME, shorts(address, value, count))
    }

    fn cuMemsetD32_v2(address: u64, value: u32, count: usize) {
        synchronous(NAME, words(address, value, count))
    }

    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Handle) {
        asynchronous(NAME, bytes(address, value, count), stream)
    }

    fn cuMemsetD16Async(address: u64, value: u16, count: usize, stream: Handle) {
        asynchronous(NAME, shorts(address, value, count), stream)
    }

    fn cuMemsetD32Async(address: u64, value: u32, count: usize, stream: Handle) {
        asynchronous(NAME, words(address, value, count), stream)
    }
}
