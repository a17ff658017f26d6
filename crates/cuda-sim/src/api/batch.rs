//! Batched copies.

use super::{Handle, Pointer, on_current_stream};
use crate::{
    code,
    op::{Copy, Operand, Work},
    scheduler,
};

/// `CUmemcpyAttributes`. Has no effect here, because every copy is between memory that the driver knows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Attributes {
    order: u32,
    places: [i32; 4],
    flags: u32,
}

driver! {
    #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
    fn cuMemcpyBatchAsync_v2(
        to: Pointer<u64>,
        from: Pointer<u64>,
        sizes: Pointer<usize>,
        count: usize,
        attributes: Pointer<Attributes>,
        first_of_attribute: Pointer<usize>,
        attribute_count: usize,
        stream: Handle,
    ) {
        let (mut state, _, handle) = on_current_stream(NAME, stream)?;
        // The default stream is documented as invalid.
        if stream.addr() <= 1 || count == 0 || attribute_count == 0 || attribute_count > count {
            return Err(code::INVALID_VALUE);
        }
        for index in 0..attribute_count {
            let (attribute, first) = (attributes.get_at(index)?, first_of_attribute.get_at(index)?);
            if !(1..=3).contains(&attribute.order) || first >= count || (index == 0 && first != 0) {
                return Err(code::INVALID_VALUE);
            }
        }
        let mut copies = Vec::with_capacity(count);
        for index in 0..count {
            let (to, from, bytes) = (to.get_at(index)?, from.get_at(index)?, sizes.get_at(index)?);
            if bytes == 0 {
                return Err(code::INVALID_VALUE);
            }
            let known = |address| state.memory.resolve(address, bytes).map(|found| found.is_some());
            if !known(to)? || !known(from)? {
                // Pageable memory in a batch is not simulated.
                return Err(code::NOT_SUPPORTED);
            }
            copies.push(Copy::linear(Operand::Address(from), Operand::Address(to), bytes));
        }
        scheduler::enqueue(&mut state, handle, NAME, Work::Copies(copies));
        Ok(())
    }
}
