//! Memory that the host and a device share: views, shaders and copies by the host's threads on one allocation.

use transload_core::{
    Access, Backend, DeviceId, ErrorKind, MemoryKind, Operation, Pattern, Place, QueueLease, RawBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};

use crate::{
    MIB, Setup, copy,
    framework::{Framework, frameworks},
    setup,
    shaders::{double, pipeline},
};

/// Returns devices whose memory is the host's: one of ours, and those of frameworks.
fn setups() -> Vec<Setup> {
    let frameworks = frameworks();
    let all = setup().into_iter().chain(frameworks.iter().map(Framework::adopted));
    let (mapped, others): (Vec<_>, Vec<_>) = all.partition(Setup::is_mapped);
    for setup in others {
        let refused = setup.backend.allocate(setup.device, MemoryKind::Mapped, 64).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("has no mapped memory"), "{refused}");
        println!("skipped: {refused}");
    }
    mapped
}

impl Setup {
    fn is_mapped(&self) -> bool {
        self.backend.devices().iter().all(|info| info.kinds.contains(&MemoryKind::Mapped))
    }

    fn host_queue(&self) -> QueueLease {
        self.host.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap()
    }

    /// Submits a shader that doubles each number of the buffer.
    fn double(&self, numbers: &RawBuffer) {
        let pipeline = pipeline(self.backend.device(self.device).unwrap());
        let commands = double(self, &pipeline, numbers);
        self.backend.submit(self.device, [commands], &[(numbers, Access::Write)]).unwrap();
    }

    fn assert_drained(self) {
        // Its threads drop what they used after a copy has ended.
        self.host.drain().unwrap();
        self.assert_empty();
    }
}

fn copy_in_place(queue: &QueueLease, src: &RawBuffer, dst: &RawBuffer) {
    drop(submit(&**queue, &Operation::CopyInPlace { src, dst }, Timing::Off).unwrap());
}

fn write_numbers(buffer: &RawBuffer) {
    let mut view = buffer.write().unwrap();
    view.chunks_mut(4).zip(1_u32..).for_each(|(to, n)| to.copy_from_slice(&n.to_ne_bytes()));
}

fn assert_times(buffer: &RawBuffer, times: u32) {
    for (found, n) in buffer.read().unwrap().chunks(4).zip(1_u32..) {
        assert_eq!(found, n.wrapping_mul(times).to_ne_bytes());
    }
}

#[test]
fn host_views_and_shaders_share_mapped_memory() {
    for setup in setups() {
        let numbers = setup.allocate(MemoryKind::Mapped, 4 * MIB);
        assert_eq!(numbers.place(), Place::new(DeviceId::Cpu, MemoryKind::Mapped));
        write_numbers(&numbers);
        for times in [2, 4] {
            setup.double(&numbers);
            assert_times(&numbers, times);
        }
        drop(numbers);
        setup.assert_drained();
    }
}

/// Commands that are submitted without naming the memory could write what a view shows.
#[test]
fn safe_code_has_no_handle_of_mapped_memory() {
    for setup in setups() {
        let (mapped, there) =
            (setup.allocate(MemoryKind::Mapped, 64), setup.allocate(MemoryKind::Device, 64));
        let refused = setup.backend.buffer(&mapped).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("`mapped_buffer`"), "{refused}");
        // SAFETY: no commands use it.
        let handles = [&mapped, &there].map(|buffer| unsafe { setup.backend.mapped_buffer(buffer) });
        let [handle, refused] = handles;
        assert!(handle.is_ok() && refused.is_err());
    }
}

#[test]
fn mapped_memory_is_copied_and_filled_by_the_devices_queue() {
    for setup in setups() {
        let (src, there) =
            (setup.filled(MemoryKind::Mapped, 1001, 7), setup.allocate(MemoryKind::Device, 1001));
        let back = setup.filled(MemoryKind::Mapped, 1001, 0);
        let queue = setup.queue();
        copy(&queue, &src, &there);
        copy(&queue, &there, &back);
        assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
        submit(&*queue, &Operation::Fill { dst: &back, pattern: Pattern::U8(9) }, Timing::Off).unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 9));
        drop((src, there, back, queue));
        setup.assert_drained();
    }
}

/// Each needs what the one before wrote, and nobody waits in between.
#[test]
fn host_copies_in_place_come_in_order_with_shaders() {
    for setup in setups() {
        let (queue, bytes) = (setup.host_queue(), 16 * MIB);
        let (src, back) =
            (setup.filled(MemoryKind::Pageable, bytes, 0), setup.filled(MemoryKind::Pageable, bytes, 0));
        let there = setup.allocate(MemoryKind::Device, bytes);
        let pipeline = pipeline(setup.backend.device(setup.device).unwrap());
        for byte in 1..4 {
            // Twice this in each byte after the shader.
            src.write().unwrap().fill(byte);
            // Recorded first, so that the shader is submitted while the host's threads copy.
            let commands = double(&setup, &pipeline, &there);
            copy_in_place(&queue, &src, &there);
            setup.backend.submit(setup.device, [commands], &[(&there, Access::Write)]).unwrap();
            copy_in_place(&queue, &there, &back);
            assert!(*back.read().unwrap() == vec![2 * byte; bytes]);
        }
        drop((src, back, there, queue));
        setup.assert_drained();
    }
}

#[test]
fn device_memory_has_no_host_views_where_it_is_mapped() {
    for setup in setups() {
        let there = setup.allocate(MemoryKind::Device, 64);
        assert!(there.host_address().is_none());
        assert_eq!(there.read().unwrap_err().kind(), ErrorKind::Unsupported);
        let (whole, part) = (there.mapped_address().unwrap(), there.slice(5..).unwrap());
        assert_eq!(part.mapped_address().unwrap().as_ptr().addr() - whole.as_ptr().addr(), 5);
        // Not by a copy that is not in place.
        let host = setup.filled(MemoryKind::Pageable, 64, 1);
        let refused = submit(&*setup.host_queue(), &Operation::Copy { src: &host, dst: &there }, Timing::Off);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
