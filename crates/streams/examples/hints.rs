//! Unified memory: say what each part is for, send it ahead of its use, and ask the driver what it made of that.
//!
//! `cargo run -p transload-streams --example hints`; without CUDA it says so and ends.

#[cfg(any(target_os = "linux", windows))]
fn main() {
    if let Err(error) = example::run(0) {
        println!("no hints here: {error}");
    }
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() {
    println!("no CUDA on this system");
}

#[cfg(any(target_os = "linux", windows))]
pub(crate) mod example {
    use transload_core::{ErrorKind, MemoryKind, Result};
    use transload_memory::{
        CudaDevice, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, MigrationPolicy, PrefetchEntry,
        PrefetchPlan, apply_migration_policy,
    };
    use transload_streams::CudaStream;

    const MIB: usize = 1 << 20;

    pub(crate) fn run(ordinal: u32) -> Result<()> {
        let device = CudaDevice::new(ordinal)?;
        let memory = CudaMemoryManager::new(&device)?;
        let stream = CudaStream::new(&device)?;
        let (weights, table) =
            (memory.allocate(MemoryKind::Unified, 8 * MIB)?, memory.allocate(MemoryKind::Unified, 8 * MIB)?);
        weights.write()?.fill(1);

        // Weights are read by all; the table stays on the host, and the device reaches it there.
        for policy in [MigrationPolicy::ReadMostly, MigrationPolicy::AccessedBy(ordinal)] {
            apply_migration_policy(&weights, policy)?;
        }
        apply_migration_policy(&table, MigrationPolicy::PreferHost)?;

        // To the memory's own device, in the order of everything else that uses the buffer. The host does not wait.
        let hints = ManagedMemoryHints::from_unified(&weights)?;
        hints.prefetch_to(None, &stream)?;
        println!("weights: {:?}", hints.residency()?);

        // A part of it back; a part that is none is an error.
        hints.prefetch_range(0, 2 * MIB, MemoryLocation::Host, &stream)?;
        if let Err(error) = hints.prefetch_range(7 * MIB, 2 * MIB, MemoryLocation::Host, &stream) {
            println!("refused: {error}");
        }

        // Many parts in one go: what lies side by side and goes to one place is one prefetch.
        let mut plan = PrefetchPlan::new();
        for layer in 0..4 {
            plan.add_buffer(&weights.slice(layer * 2 * MIB..(layer + 1) * 2 * MIB)?, ordinal.cast_signed());
        }
        plan.add_buffer(&table, PrefetchEntry::HOST);
        plan.execute(&stream)?;

        // A NUMA node of the host, where the driver is of CUDA 12.2 or newer.
        match hints.prefetch_to(MemoryLocation::HostNuma(0), &stream) {
            Err(error) if error.kind() == ErrorKind::MissingFunction => println!("no nodes: {error}"),
            outcome => outcome?,
        }

        // All advice taken back; the bytes were never in question.
        hints.apply_policy(MigrationPolicy::Reset)?;
        println!("after {}: {:?}", MigrationPolicy::Reset, hints.residency()?);
        println!("intact: {}", weights.read()?.iter().all(|byte| *byte == 1));
        Ok(())
    }
}
