//! Memory of Vulkan's that CUDA copies from, handed over by timeline semaphores on the device, or by a host that waits.

use std::{cell::Cell, mem, ptr};

use anyhow::{Context as _, Result, bail, ensure};
use transload_cuda_sys::{
    AsStream as _, Driver, check,
    cust::sys::{
        self, CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
        CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
        CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUexternalMemory, CUexternalSemaphore,
    },
    ffi,
};
use transload_memory::CudaDevice;
use transload_streams::CudaStream;

use super::{Adapter, Buffer, Device, Recorded, Timeline, microseconds};
use crate::{
    comparison::{Variant, Verify},
    row::Row,
};

/// Bytes that are handed over.
const HANDED: usize = 4 << 10;
/// Hand-overs before the host waits.
const TIMES: usize = 32;
/// The memory is one buffer's.
const DEDICATED: u32 = 1;

/// Who has one API come after the other.
#[derive(Clone, Copy)]
enum Waiting {
    Host,
    Device,
    Bridge { before: bool, after: bool },
}

/// A hand-over to each family and back. Each time Vulkan fills the memory and CUDA copies it.
pub(super) fn rows(adapter: &Adapter<'_>, device: &Device) -> Result<Vec<Row>> {
    let Some(hands) = &HandOver::new(adapter, device)? else { return Ok(Vec::new()) };
    let by_a_stream = "a stream of CUDA between the other and Vulkan waits";
    let mut variants = Vec::new();
    for (family, fills) in &hands.fills {
        for (name, method, order) in [
            ("waiting", "the host waits", Waiting::Host),
            ("in-order", "the device waits", Waiting::Device),
            ("by-a-stream", by_a_stream, Waiting::Bridge { before: true, after: true }),
            ("by-a-stream-before", by_a_stream, Waiting::Bridge { before: true, after: false }),
            ("by-a-stream-after", by_a_stream, Waiting::Bridge { before: false, after: true }),
        ] {
            let mut timed = microseconds(move || hands.run(fills, order));
            let id = format!("{family}-{name}");
            variants.push(Variant::new(&id, method, move || Ok(timed()? / TIMES as f64)));
        }
    }
    let what = "memory handed over to Vulkan and back to CUDA by hand, each time";
    adapter.compare((&format!("probe/hand-over/{HANDED}"), what), ("us", 0), 30, 1, variants)
}

/// Memory that Vulkan fills and CUDA copies, in turns.
pub(in crate::wgpu) struct HandOver<'a> {
    /// The fills by each family.
    fills: Vec<(&'static str, Recorded<'a>)>,
    shared: Shared,
    before: Timeline<'a>,
    after: Timeline<'a>,
    _buffer: Buffer<'a>,
    stream: CudaStream,
    bridge: CudaStream,
    hands: Cell<u64>,
}

impl<'a> HandOver<'a> {
    /// Returns `None` if CUDA does not show the device.
    pub(in crate::wgpu) fn new(adapter: &Adapter<'_>, device: &'a Device) -> Result<Option<Self>> {
        let uuid = adapter.info.uuid.context("a device without a UUID")?;
        let is_same = |n: &u32| {
            let found = transload_cuda_sys::Device::new(*n).and_then(|device| device.uuid());
            found.is_ok_and(|found| found == uuid)
        };
        let Some(ordinal) = (0..Driver::get()?.device_count()?).find(is_same) else { return Ok(None) };
        let cuda = CudaDevice::new(ordinal)?;
        let (stream, bridge) = (CudaStream::new(&cuda)?, CudaStream::new(&cuda)?);
        let buffer = device.allocate(HANDED, false)?;
        let (before, after) = (device.timeline()?, device.timeline()?);
        let shared = Shared::import(&cuda, buffer.descriptor()?, buffer.size, [&before, &after])?;
        let mut fills = Vec::new();
        for (queue, family) in ["universal", "transfer"].into_iter().enumerate() {
            let recorded = device.record(queue, TIMES, |commands, index| {
                // SAFETY: the buffer is the device's and has the bytes.
                unsafe { device.raw.cmd_fill_buffer(commands, buffer.raw, 0, HANDED as u64, index as u32) };
            })?;
            fills.push((family, recorded));
        }
        let hands = Cell::new(0);
        Ok(Some(Self { fills, shared, before, after, _buffer: buffer, stream, bridge, hands }))
    }

    /// Hands over to wgpu's family [`TIMES`] times, with waits by the device.
    pub(in crate::wgpu) fn in_order(&self) -> Result<()> {
        let (_, fills) = self.fills.first().context("no fills")?;
        self.run(fills, Waiting::Device)
    }

    fn run(&self, fills: &Recorded<'_>, order: Waiting) -> Result<()> {
        let Self { shared, before, after, stream, bridge, hands, .. } = self;
        let _bound = shared.cuda.context()?.enter()?;
        for index in 0..TIMES {
            let value = hands.get() + 1;
            hands.set(value);
            match order {
                Waiting::Host => {
                    stream.synchronize()?;
                    let filled = fills.submit(index, None, after)?;
                    after.wait(filled, true)?;
                }
                Waiting::Device => {
                    shared.signal(stream, value)?;
                    let filled = fills.submit(index, Some((before, value)), after)?;
                    shared.wait(stream, filled)?;
                }
                Waiting::Bridge { before: by_bridge, after: after_bridge } => {
                    if by_bridge {
                        bridge.wait_fences(&[stream.fence()?])?;
                    }
                    shared.signal(if by_bridge { bridge } else { stream }, value)?;
                    let filled = fills.submit(index, Some((before, value)), after)?;
                    shared.wait(if after_bridge { bridge } else { stream }, filled)?;
                    if after_bridge {
                        stream.wait_fences(&[bridge.fence()?])?;
                    }
                }
            }
            shared.copy(stream)?;
        }
        stream.synchronize()?;
        self.check()
    }
}

impl Verify for HandOver<'_> {
    fn poison(&self) -> Result<()> {
        self.shared.write(u32::MAX)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.shared.copied()? == TIMES as u32 - 1, "CUDA copied before Vulkan had filled");
        Ok(())
    }
}

/// The memory and the semaphores in CUDA, and where CUDA copies to.
struct Shared {
    cuda: CudaDevice,
    memory: CUexternalMemory,
    address: u64,
    to: u64,
    before: CUexternalSemaphore,
    after: CUexternalSemaphore,
}

impl Shared {
    /// If a call fails, what was made before it stays until the process ends.
    fn import(cuda: &CudaDevice, memory: i32, size: u64, semaphores: [&Timeline<'_>; 2]) -> Result<Self> {
        let _bound = cuda.context()?.enter()?;
        let description = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: sys::CUexternalMemoryHandleType_enum::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 { fd: memory },
            size,
            flags: DEDICATED,
            reserved: [0; 16],
        };
        let (mut memory, mut address, mut to) = (ptr::null_mut(), 0, 0);
        let range = CUDA_EXTERNAL_MEMORY_BUFFER_DESC { offset: 0, size, flags: 0, reserved: [0; 16] };
        // SAFETY: the context is current; the descriptor names memory of so many bytes, which is dedicated.
        unsafe {
            check("cuImportExternalMemory", ffi::cuImportExternalMemory(&mut memory, &description))?;
            let code = ffi::cuExternalMemoryGetMappedBuffer(&mut address, memory, &range);
            check("cuExternalMemoryGetMappedBuffer", code)?;
            check("cuMemAlloc_v2", ffi::cuMemAlloc_v2(&mut to, HANDED))?;
        }
        let mut found = Vec::new();
        for semaphore in semaphores {
            let description = CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
                type_: sys::CUexternalSemaphoreHandleType_enum::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD,
                handle: sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1 {
                    fd: semaphore.descriptor()?,
                },
                flags: 0,
                reserved: [0; 16],
            };
            let mut raw: CUexternalSemaphore = ptr::null_mut();
            // SAFETY: the context is current; the descriptor names a timeline semaphore.
            let code = unsafe { ffi::cuImportExternalSemaphore(&mut raw, &description) };
            check("cuImportExternalSemaphore", code)?;
            found.push(raw);
        }
        let [before, after] = found[..] else { bail!("two semaphores") };
        Ok(Self { cuda: cuda.clone(), memory, address, to, before, after })
    }

    fn signal(&self, stream: &CudaStream, value: u64) -> Result<()> {
        // SAFETY: all fields are integers or unions of such.
        let mut parameters: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS = unsafe { mem::zeroed() };
        parameters.params.fence.value = value;
        // SAFETY: the semaphore and the stream are valid; there is one of each.
        let code =
            unsafe { ffi::cuSignalExternalSemaphoresAsync(&self.before, &parameters, 1, stream.as_raw()) };
        Ok(check("cuSignalExternalSemaphoresAsync", code)?)
    }

    fn wait(&self, stream: &CudaStream, value: u64) -> Result<()> {
        // SAFETY: all fields are integers or unions of such.
        let mut parameters: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS = unsafe { mem::zeroed() };
        parameters.params.fence.value = value;
        // SAFETY: the semaphore and the stream are valid; there is one of each.
        let code =
            unsafe { ffi::cuWaitExternalSemaphoresAsync(&self.after, &parameters, 1, stream.as_raw()) };
        Ok(check("cuWaitExternalSemaphoresAsync", code)?)
    }

    fn copy(&self, stream: &CudaStream) -> Result<()> {
        // SAFETY: both have the bytes.
        let code = unsafe { ffi::cuMemcpyDtoDAsync_v2(self.to, self.address, HANDED, stream.as_raw()) };
        Ok(check("cuMemcpyDtoDAsync_v2", code)?)
    }

    /// Returns the last word that was copied. Nothing uses the memory.
    fn copied(&self) -> Result<u32> {
        let _bound = self.cuda.context()?.enter()?;
        let mut word = 0_u32;
        // SAFETY: the last four bytes of the memory, which no work uses.
        let code = unsafe { ffi::cuMemcpyDtoH_v2((&raw mut word).cast(), self.last(), size_of::<u32>()) };
        check("cuMemcpyDtoH_v2", code)?;
        Ok(word)
    }

    /// Writes that word.
    fn write(&self, word: u32) -> Result<()> {
        let _bound = self.cuda.context()?.enter()?;
        // SAFETY: as above.
        let code = unsafe { ffi::cuMemcpyHtoD_v2(self.last(), (&raw const word).cast(), size_of::<u32>()) };
        Ok(check("cuMemcpyHtoD_v2", code)?)
    }

    fn last(&self) -> u64 {
        self.to + HANDED as u64 - size_of::<u32>() as u64
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Ok(_bound) = self.cuda.context().map_err(drop).and_then(|context| context.enter().map_err(drop))
        else {
            return;
        };
        // SAFETY: nothing uses them any more, and a context is current. Errors cannot be handled in a drop.
        unsafe {
            ffi::cuMemFree_v2(self.to);
            ffi::cuMemFree_v2(self.address);
            ffi::cuDestroyExternalMemory(self.memory);
            ffi::cuDestroyExternalSemaphore(self.before);
            ffi::cuDestroyExternalSemaphore(self.after);
        }
    }
}
