//! Twins of this workspace's own kernels, known from the installation on.

use std::sync::Once;

use crate::{
    access::AccessKind,
    example_kernels,
    twin::{IllegalAddress, KernelAccess, KernelMemory, KernelTwin, Launch, register_kernel_twin},
};

/// Registers them, once: a test may put another twin in a kernel's place afterwards.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        register_kernel_twin("transload_copy", COPY);
        example_kernels::register();
    });
}

/// `transload_copy(dst, src, bytes)`: crates/streams/src/kernels/copy.cu.
const COPY: KernelTwin = KernelTwin { parameters: &[8, 8, 8], accesses, run };

fn parameters(launch: &Launch) -> (u64, u64, usize) {
    (launch.number(0), launch.number(1), launch.number(2) as usize)
}

fn accesses(launch: &Launch) -> Vec<KernelAccess> {
    let (dst, src, bytes) = parameters(launch);
    vec![
        KernelAccess { address: src, bytes, kind: AccessKind::Read },
        KernelAccess { address: dst, bytes, kind: AccessKind::Write },
    ]
}

fn run(launch: &Launch, memory: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    let (dst, src, bytes) = parameters(launch);
    memory.copy(src, dst, bytes)
}
