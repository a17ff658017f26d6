//! The shape of a launch: grid and blocks.

use transload_core::{Error, ErrorKind, Result};

/// Maximum blocks of a grid in each dimension, for all devices since compute capability 3.0.
///
/// Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
const GRID_LIMITS: (u32, u32, u32) = (i32::MAX.cast_unsigned(), 65_535, 65_535);
/// Maximum threads of a block in each dimension; source as above.
const BLOCK_LIMITS: (u32, u32, u32) = (1_024, 1_024, 64);

/// The shape of a launch. Checked when the launch is enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchConfig {
    /// Blocks in each dimension: at most 2,147,483,647 × 65,535 × 65,535.
    pub grid: (u32, u32, u32),
    /// Threads of a block in each dimension: at most 1,024 × 1,024 × 64, and in total at most the kernel's
    /// [`max_threads_per_block`](crate::CudaKernel::max_threads_per_block).
    pub block: (u32, u32, u32),
    /// Bytes of dynamic shared memory for each block.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// Creates a one-dimensional shape of `blocks` blocks of `threads` threads, without dynamic shared memory.
    #[must_use]
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: (blocks, 1, 1), block: (threads, 1, 1), shared_bytes: 0 }
    }

    /// Creates a one-dimensional shape with one thread per element, as far as the limit of a grid allows: for kernels with
    /// a grid-stride loop.
    #[must_use]
    pub fn for_elements(elements: u64, threads: u32) -> Self {
        let blocks = elements.div_ceil(u64::from(threads.max(1)));
        Self::linear(u32::try_from(blocks).map_or(GRID_LIMITS.0, |blocks| blocks.min(GRID_LIMITS.0)), threads)
    }

    /// Returns this shape with dynamic shared memory, in bytes per block.
    #[must_use]
    pub fn with_shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// Checks the shape against the limits of devices and of one kernel.
    pub(crate) fn check(&self, kernel: &str, most_threads: u32, most_shared: u32) -> Result<()> {
        let refused = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if !within(self.grid, GRID_LIMITS) {
            let ((x, y, z), (a, b, c)) = (self.grid, GRID_LIMITS);
            return refused(format!("a grid of {x} × {y} × {z} blocks; valid are 1 to {a} × {b} × {c}"));
        }
        let ((x, y, z), (a, b, c)) = (self.block, BLOCK_LIMITS);
        let threads = [x, y, z].into_iter().map(u64::from).fold(1, u64::saturating_mul);
        if !within(self.block, BLOCK_LIMITS) || threads > u64::from(most_threads) {
            let text = format!(
                "a block of {x} × {y} × {z} threads; valid are 1 to {a} × {b} × {c}, at most {most_threads} in all for {kernel}"
            );
            return refused(text);
        }
        if self.shared_bytes > most_shared {
            let asked = self.shared_bytes;
            let text = format!(
                "{asked} bytes of dynamic shared memory for a block; {kernel} can have {most_shared}"
            );
            return refused(text);
        }
        Ok(())
    }
}

fn within(shape: (u32, u32, u32), limits: (u32, u32, u32)) -> bool {
    (1..=limits.0).contains(&shape.0)
        && (1..=limits.1).contains(&shape.1)
        && (1..=limits.2).contains(&shape.2)
}
