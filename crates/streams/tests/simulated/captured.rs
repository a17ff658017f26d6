//! What a driver's answer about a capture means for a stream.

use transload_core::{MemoryKind, Pattern};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use super::{builder, within};

use crate::Check as _;

#[test]
fn an_answer_about_a_capture_says_nothing_of_the_work_and_breaks_no_stream() {
    const CAPTURED_EVENT: u32 = 907;
    within(|| {
        for call in ["cuEventQuery", "cuEventSynchronize"] {
            let sim = builder().record_accesses(true).checked();
            let device = CudaDevice::new(sim.ordinal()).unwrap();
            let memory = CudaMemoryManager::new(&device).unwrap();
            let stream = CudaStream::new(&device).unwrap();
            let there = memory.allocate(MemoryKind::Device, 1 << 20).unwrap();
            let filled = stream.memset_async(&there, Pattern::U8(1));
            let fence = stream.fence().unwrap();
            sim.fail_call(Some(call), 1, CAPTURED_EVENT);
            let _asked = fence.is_over();
            fence.wait().expect("the stream itself tells");
            assert!(stream.is_ready().unwrap(), "{call}: reached before it was over");
            filled.wait().unwrap();
            stream.memset_async(&there, Pattern::U8(2)).wait().unwrap();
        }
    });
}
