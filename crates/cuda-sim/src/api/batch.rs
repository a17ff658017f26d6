//! Batched copies.

use super::{Handle, Pointer, Scope, copy::reachable, on_current_stream};
use crate::{
    code::{self, CuResult},
    op::{Copy, Operand, Work},
    scheduler,
    state::State,
};

/// `CUmemcpyAttributes`. The locations have no effect here, because every copy is between memory that the driver knows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Attributes {
    order: u32,
    places: [i32; 4],
    flags: u32,
}

/// The arrays of a call.
#[derive(Clone, Copy)]
struct Batch {
    to: Pointer<u64>,
    from: Pointer<u64>,
    sizes: Pointer<usize>,
    count: usize,
    attributes: Pointer<Attributes>,
    first_of_attribute: Pointer<usize>,
    attribute_count: usize,
}

impl Batch {
    /// Checks the attributes: each belongs to the copies from its index to the next one's.
    fn check_attributes(&self) -> CuResult {
        if self.count == 0 || self.attribute_count == 0 || self.attribute_count > self.count {
            return Err(code::INVALID_VALUE);
        }
        let mut next = 0;
        for index in 0..self.attribute_count {
            let (attribute, first) = (self.attributes.get_at(index)?, self.first_of_attribute.get_at(index)?);
            let is_known = (1..=3).contains(&attribute.order) && attribute.flags <= 1;
            if !is_known || first < next || first >= self.count || (index == 0 && first != 0) {
                return Err(code::INVALID_VALUE);
            }
            next = first + 1;
        }
        Ok(())
    }

    /// Returns one copy.
    fn copy(&self, state: &State, scope: Scope, index: usize) -> CuResult<Copy> {
        let (to, from) = (self.to.get_at(index)?, self.from.get_at(index)?);
        let bytes = self.sizes.get_at(index)?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let known = |address| state.memory.resolve(address, bytes).map(|found| found.is_some());
        if !known(to)? || !known(from)? {
            // Pageable memory in a batch is not simulated.
            return Err(code::NOT_SUPPORTED);
        }
        reachable(state, scope, to, from)?;
        Ok(Copy::linear(Operand::Address(from), Operand::Address(to), bytes))
    }

    /// Enqueues all copies as one operation, or none. `failed` is set to the index of the copy that is refused.
    fn enqueue(&self, name: &'static str, stream: Handle, failed: &mut Option<usize>) -> CuResult {
        let (mut state, scope, handle) = on_current_stream(name, stream)?;
        // The default stream is documented as invalid.
        if stream.addr() <= 1 {
            return Err(code::INVALID_VALUE);
        }
        self.check_attributes()?;
        let copies: CuResult<_> = (0..self.count)
            .map(|index| self.copy(&state, scope, index).inspect_err(|_| *failed = Some(index)))
            .collect();
        scheduler::enqueue(&mut state, handle, name, Work::Copies(copies?));
        Ok(())
    }
}

driver! {
    #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
    fn cuMemcpyBatchAsync(
        to: Pointer<u64>,
        from: Pointer<u64>,
        sizes: Pointer<usize>,
        count: usize,
        attributes: Pointer<Attributes>,
        first_of_attribute: Pointer<usize>,
        attribute_count: usize,
        failed_index: Pointer<usize>,
        stream: Handle,
    ) {
        let mut failed = None;
        let batch = Batch { to, from, sizes, count, attributes, first_of_attribute, attribute_count };
        let enqueued = batch.enqueue(NAME, stream, &mut failed);
        // An error that is not one copy's has no index.
        if enqueued.is_err() && !failed_index.is_null() {
            failed_index.set(failed.unwrap_or(usize::MAX))?;
        }
        enqueued
    }

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
        let batch = Batch { to, from, sizes, count, attributes, first_of_attribute, attribute_count };
        batch.enqueue(NAME, stream, &mut None)
    }
}
