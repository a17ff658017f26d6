//! What copies take over from another API, and hand back. On the software driver and llvmpipe.

use transload_core::{Backend as _, MemoryKind};
use transload_cuda_sim::harness;

use super::*;
use crate::{CudaInterop, setup};

#[test]
fn each_pair_of_a_batch_is_handed_over_and_nothing_else() {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    let (_test, _cuda, memory) = setup::cuda_of(&state.info);
    let interop = match CudaInterop::new(&backend, state.id(), &memory) {
        Err(error) if [ErrorKind::UnknownDevice, ErrorKind::Unsupported].contains(&error.kind()) => {
            return println!("skipped: {error}");
        }
        opened => opened.unwrap(),
    };
    let theirs = interop.allocate(4096).unwrap();
    let ours = backend.share(&theirs, state.id()).unwrap().buffer;
    let other = backend.allocate(state.id(), MemoryKind::Device, 4096).unwrap();
    // Returns where each range begins and ends.
    let noted = |operation: &Operation<'_>| {
        let mut packer = Packer {
            device: &state,
            line: &state.wgpu,
            after: &[],
            measured: &[],
            commands: Commands::new(),
            exported: SmallVec::new(),
            regions: 0,
            chunk: None,
            pending: None,
            last: None,
        };
        // SAFETY: nothing is submitted.
        unsafe { packer.pack(operation) }.unwrap();
        packer.exported.into_iter().map(|(_, range)| (range.start, range.end)).collect::<Vec<_>>()
    };
    let pair =
        |at: usize, bytes: usize| (ours.slice(at..at + bytes).unwrap(), other.slice(at..at + bytes).unwrap());
    let pairs = [pair(1001, 10), pair(2000, 100), pair(102, 3), pair(3000, 0)];
    let runs = noted(&Operation::CopyBatch { pairs: &pairs });
    assert_eq!(runs, [(100, 2100)], "all pairs are of one run");
    assert!(noted(&Operation::CopyBatch { pairs: &pairs[3..] }).is_empty());
    let (src, dst) = &pairs[3];
    assert!(noted(&Operation::Copy { src, dst }).is_empty());
    let (src, dst) = &pairs[0];
    assert_eq!(noted(&Operation::Copy { src, dst }), [(1000, 1012)]);
}
