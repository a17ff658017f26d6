//! Devices that are used by wgpu's own interface: those of OpenGL, and those of Vulkan if asked for.

use std::{env, process::Command};

use transload_backend_wgpu::wgpu;
use transload_core::{
    Backend, Error, ErrorKind, MemoryKind, Operation, Pattern, Pitched, RawBuffer, Timing, submit,
};

use crate::{
    MIB, Setup, copy,
    framework::{DEVICES, Framework, PORTABLE, adapter, frameworks, tested},
    setup,
};

/// Runs this program for such devices, but for tests of what only Vulkan has.
fn run_for(devices: &str) {
    if env::var_os(DEVICES).is_some() {
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([
            "--nocapture",
            "--skip",
            "adapters::",
            "--skip",
            "between::",
            "--skip",
            "cuda::",
            "--skip",
            "exported::",
            "--skip",
            "layer::",
        ])
        // Where threads make devices at once, a thread of NVIDIA's driver (580.159) spins for ever, in one of four runs.
        .args(env::var_os("TRANSLOAD_TEST_DRIVER").map(|_| "--test-threads=1"))
        .env(DEVICES, devices)
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !text.contains("running 0 tests"), "{text}");
    let skips = text.lines().filter_map(|line| line.find("skipped: ").map(|at| &line[at..]));
    skips.for_each(|skip| println!("{skip}"));
}

#[test]
fn tests_pass_on_devices_of_opengl() {
    run_for(PORTABLE[0]);
}

#[test]
fn tests_pass_on_vulkan_devices_by_wgpu_alone() {
    run_for(PORTABLE[1]);
}

/// A small generator of numbers below a limit.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// Compares device memory with what the host did to a copy of it.
#[test]
fn ranges_of_any_bytes_are_written_exactly() {
    const LEN: usize = 70_003;
    let Some(setup) = setup() else { return };
    let (queue, mut numbers) = (setup.queue(), Numbers(7));
    let there = setup.allocate(MemoryKind::Device, LEN);
    let other = setup.allocate(MemoryKind::Device, LEN);
    let mut expected = vec![0x55; LEN];
    submit(&*queue, &Operation::Fill { dst: &there, pattern: Pattern::U8(0x55) }, Timing::Off).unwrap();
    for round in 0..150_u32 {
        let bytes = 1 + [numbers.below(9), numbers.below(3000), numbers.below(LEN / 2)][numbers.below(3)];
        let at = [numbers.below(LEN - bytes + 1), LEN - bytes][usize::from(numbers.below(4) == 0)];
        let dst = there.slice(at..at + bytes).unwrap();
        match numbers.below(5) {
            0 => {
                let new: Vec<u8> = (0..bytes).map(|n| (n + round as usize) as u8).collect();
                let host = setup.filled(MemoryKind::Pageable, bytes, 0);
                host.write().unwrap().copy_from_slice(&new);
                copy(&queue, &host, &dst);
                expected[at..at + bytes].copy_from_slice(&new);
            }
            1 => {
                submit(
                    &*queue,
                    &Operation::Fill { dst: &dst, pattern: Pattern::U8(round as u8) },
                    Timing::Off,
                )
                .unwrap();
                expected[at..at + bytes].fill(round as u8);
            }
            2 => {
                let (at, bytes) = (at.next_multiple_of(2).min(LEN - 3), 2);
                let dst = there.slice(at..at + bytes).unwrap();
                let pattern = Pattern::U16(round as u16);
                if at.is_multiple_of(2) {
                    submit(&*queue, &Operation::Fill { dst: &dst, pattern }, Timing::Off).unwrap();
                    expected[at..at + bytes].copy_from_slice(&(round as u16).to_ne_bytes());
                }
            }
            // Within the buffer, where that is free.
            3 if at >= bytes => {
                let from = numbers.below(at - bytes + 1);
                copy(&queue, &there.slice(from..from + bytes).unwrap(), &dst);
                expected.copy_within(from..from + bytes, at);
            }
            // From there to another place, and back.
            _ => {
                let from = numbers.below(LEN - bytes + 1);
                let between = numbers.below(LEN - bytes + 1);
                let (src, between) = (
                    there.slice(from..from + bytes).unwrap(),
                    other.slice(between..between + bytes).unwrap(),
                );
                copy(&queue, &src, &between);
                copy(&queue, &between, &dst);
                expected.copy_within(from..from + bytes, at);
            }
        }
        if round % 10 == 0 || round == 149 {
            assert_holds(&setup, &there, &expected, round);
        }
    }
    drop((there, other, queue));
    setup.assert_empty();
}

fn assert_holds(setup: &Setup, there: &RawBuffer, expected: &[u8], round: u32) {
    let back = setup.filled(MemoryKind::Pageable, there.len(), 0);
    copy(&setup.queue(), there, &back);
    let back = back.read().unwrap();
    let wrong = back.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "the first wrong byte after round {round}");
}

/// More than the memory through which they pass at once.
#[test]
fn long_ranges_of_odd_bytes_are_written_exactly() {
    setup().iter().for_each(write_long_ranges);
}

/// The shader writes them by windows.
#[test]
fn ranges_beyond_the_largest_binding_are_written_exactly() {
    let Some(adapter) = adapter().filter(|_| env::var_os(DEVICES).is_some()) else { return };
    let mut descriptor =
        wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..wgpu::DeviceDescriptor::default() };
    descriptor.required_limits.max_storage_buffer_binding_size = 5 * MIB as u64;
    let Ok((device, queue)) = pollster::block_on(adapter.request_device(&descriptor)) else { return };
    let config = tested().0.with_device(device.clone(), queue.clone());
    write_long_ranges(&Framework { device, queue, config }.adopted());
}

fn write_long_ranges(setup: &Setup) {
    const LEN: usize = 11 * MIB + 7;
    let queue = setup.queue();
    let (one, two) = (setup.allocate(MemoryKind::Device, LEN + 5), setup.allocate(MemoryKind::Device, LEN));
    let src = setup.filled(MemoryKind::Pageable, LEN, 0);
    src.write().unwrap().iter_mut().enumerate().for_each(|(n, to)| *to = (n * 7 + n / 4096) as u8);
    let odd = one.slice(5..5 + LEN).unwrap();
    copy(&queue, &src, &odd);
    copy(&queue, &odd, &two);
    assert_holds(setup, &two, &src.read().unwrap(), 0);
    let wide = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10_u128;
    let dst = two.slice(16..11 * MIB).unwrap();
    submit(&*queue, &Operation::Fill { dst: &dst, pattern: Pattern::U128(wide) }, Timing::Off).unwrap();
    let mut expected = src.read().unwrap().to_vec();
    expected[16..11 * MIB].chunks_mut(16).for_each(|to| to.copy_from_slice(&wide.to_ne_bytes()));
    assert_holds(setup, &two, &expected, 1);
}

/// Rows of 3 bytes side by side: each word has bytes of two rows.
#[test]
fn rows_and_lists_that_share_words_are_written_exactly() {
    const ROWS: usize = 9000;
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let src = setup.filled(MemoryKind::Pageable, ROWS * 4, 0);
    src.write().unwrap().iter_mut().enumerate().for_each(|(n, to)| *to = (n / 3) as u8);
    let there = setup.allocate(MemoryKind::Device, ROWS * 4);
    let packed = setup.allocate(MemoryKind::Device, ROWS * 3);
    let rows = Pitched::new(3, ROWS, 4, 3);
    let expected: Vec<u8> = src.read().unwrap().chunks(4).flat_map(|row| row[..3].to_vec()).collect();
    copy(&queue, &src, &there);
    for from in [&src, &there] {
        submit(&*queue, &Operation::Fill { dst: &packed, pattern: Pattern::U8(0xEE) }, Timing::Off).unwrap();
        submit(&*queue, &Operation::CopyPitched { src: from, dst: &packed, rows }, Timing::Off).unwrap();
        assert_holds(&setup, &packed, &expected, 0);
    }
    let slice =
        |buffer: &RawBuffer, row: usize, pitch: usize| buffer.slice(row * pitch..row * pitch + 3).unwrap();
    let pairs: Vec<_> = (0..ROWS).map(|row| (slice(&there, row, 4), slice(&packed, row, 3))).collect();
    submit(&*queue, &Operation::Fill { dst: &packed, pattern: Pattern::U8(0xEE) }, Timing::Off).unwrap();
    submit(&*queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    assert_holds(&setup, &packed, &expected, 1);
}

/// What it needs is known before anything is submitted.
#[test]
fn buffer_without_shaders_is_refused_and_the_device_goes_on() {
    if env::var_os(DEVICES).is_none() {
        return;
    }
    for framework in frameworks() {
        let setup = framework.adopted();
        let plain = framework.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 3 * MIB as u64,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        // SAFETY: it is a buffer of the device, and not destroyed.
        let there = unsafe { setup.backend.adopt_buffer(setup.device, &plain) }.unwrap();
        let (queue, src) = (setup.queue(), setup.filled(MemoryKind::Pageable, 2 * MIB, 7));
        let refused = |operation: &Operation<'_>| {
            let error = submit(&*queue, operation, Timing::Off).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        };
        let odd = 2 * MIB - 1;
        let (from, to) = (src.slice(..odd).unwrap(), there.slice(4..4 + odd).unwrap());
        refused(&Operation::Copy { src: &from, dst: &to });
        let even = (src.slice(..MIB).unwrap(), there.slice(..MIB).unwrap());
        let pairs = [even.clone(), (from.slice(..3).unwrap(), to.slice(MIB..MIB + 3).unwrap())];
        refused(&Operation::CopyBatch { pairs: &pairs });
        let rows = Pitched::new(MIB, 2, MIB, MIB + 1);
        refused(&Operation::CopyPitched { src: &src, dst: &there, rows });
        copy(&queue, &even.0, &even.1).wait().unwrap();
        let back = setup.filled(MemoryKind::Pageable, MIB, 0);
        copy(&queue, &even.1, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn destroyed_device_fails_what_uses_it_and_leaks_nothing() {
    if env::var_os(DEVICES).is_none() {
        return;
    }
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let there = setup.allocate(MemoryKind::Device, 8 * MIB);
    let src = setup.filled(MemoryKind::Pageable, 8 * MIB, 1);
    let good = copy(&queue, &src, &there);
    good.wait().unwrap();
    let awaited = copy(&queue, &src, &there).done();
    setup.backend.device(setup.device).unwrap().destroy();
    let is_lost = |error: Error| error.kind() == ErrorKind::DeviceLost;
    let copied = || submit(&*queue, &Operation::Copy { src: &src, dst: &there }, Timing::Off);
    for _ in 0..2 {
        let refused = copied().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DeviceLost, "{refused:?}");
    }
    // What was submitted before may have ended in time.
    assert!(pollster::block_on(awaited).err().is_none_or(is_lost));
    good.wait().unwrap();
    assert!(is_lost(setup.backend.allocate(setup.device, MemoryKind::Device, 100).unwrap_err()));
    drop((there, src, queue));
    assert!(is_lost(setup.backend.drain().unwrap_err()), "the loss is returned");
    setup.assert_empty();
}

#[test]
fn destroyed_buffer_is_refused_and_the_device_goes_on() {
    if env::var_os(DEVICES).is_none() {
        return;
    }
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let there = setup.allocate(MemoryKind::Device, 64);
    let src = setup.filled(MemoryKind::Pageable, 64, 1);
    copy(&queue, &src, &there).wait().unwrap();
    setup.backend.buffer(&there).unwrap().destroy();
    for (src, dst) in [(&src, &there), (&there, &src)] {
        let refused = submit(&*queue, &Operation::Copy { src, dst }, Timing::Off).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    let odd = there.slice(1..6).unwrap();
    let refused = submit(&*queue, &Operation::Fill { dst: &odd, pattern: Pattern::U8(1) }, Timing::Off);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let other = setup.allocate(MemoryKind::Device, 64);
    copy(&queue, &src, &other);
    assert_holds(&setup, &other, &[1; 64], 0);
}
