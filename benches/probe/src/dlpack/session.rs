//! Numbered buffers, one stream, one importer.

use std::{
    ffi::c_void,
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, ResourceCounts};
use transload_dlpack::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, Export, Form, Importer, ManagedTensor,
};

use crate::roundtrip::Failure;

/// How a buffer is to be exported.
#[repr(C)]
pub(crate) struct Wish {
    versioned: u32,
    read_only: u32,
    code: u8,
    bits: u8,
    lanes: u16,
    ndim: u32,
    shape: *const i64,
    /// 0: the buffer's own.
    device_type: u32,
    device_id: i32,
    /// Whether `stream` is Python's `None`.
    stream_is_none: u32,
    stream: i64,
}

/// What the C library keeps between its calls.
pub(crate) struct Session {
    host: Arc<CpuBackend>,
    device: Option<device::Device>,
    importer: Importer,
    buffers: Numbered<RawBuffer>,
}

pub(super) fn refused(text: impl Into<String>) -> Failure {
    Error::new(ErrorKind::InvalidArgument, text.into()).into()
}

/// Values that the other side knows by their numbers.
pub(super) struct Numbered<T>(Mutex<Vec<Option<T>>>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Numbered<T> {
    pub(super) fn keep(&self, value: T) -> i64 {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.push(Some(value));
        i64::try_from(values.len() - 1).unwrap_or(i64::MAX)
    }

    pub(super) fn get(&self, number: i64) -> Result<T, Failure> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = usize::try_from(number).ok().and_then(|number| values.get(number).cloned().flatten());
        found.ok_or_else(|| refused("no such number"))
    }

    /// Drops it under no lock: its deleter may be someone's code, which may come back here.
    pub(super) fn drop(&self, number: i64) -> Result<(), Failure> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = usize::try_from(number).ok().and_then(|number| values.get_mut(number));
        let taken = slot.and_then(Option::take);
        drop(values);
        taken.map(drop).ok_or_else(|| refused("no such number"))
    }
}

impl Session {
    pub(super) fn open(ordinal: u32) -> Result<Self, Failure> {
        let host = CpuBackend::new()?;
        let device = if ordinal == u32::MAX { None } else { Some(device::Device::open(ordinal)?) };
        let importer = device.as_ref().map_or_else(Importer::new, device::Device::importer);
        Ok(Self { host, device, importer, buffers: Numbered::default() })
    }

    pub(super) fn close(self) -> Result<(), Failure> {
        let Self { host, device, importer, buffers } = self;
        drop(buffers);
        importer.drain()?;
        host.drain()?;
        let mut counts_by_owner =
            vec![("imported", importer.resource_counts()), ("host", host.resource_counts())];
        if let Some(device) = device {
            counts_by_owner.push(("device", device.drained()?));
        }
        match counts_by_owner.into_iter().find(|(_, counts)| *counts != ResourceCounts::default()) {
            Some((whose, counts)) => Err(Failure::Alive(format!("{whose}: {counts}"))),
            None => Ok(()),
        }
    }

    pub(super) fn allocate(&self, kind: u32, bytes: u64) -> Result<i64, Failure> {
        let kind = MemoryKind::ALL.get(kind as usize).copied().ok_or_else(|| refused("no such kind"))?;
        let bytes = usize::try_from(bytes).map_err(|_| Failure::Bytes(bytes))?;
        let buffer = match kind {
            MemoryKind::Pageable => self.host.allocate(DeviceId::Cpu, kind, bytes)?,
            _ => self.device()?.allocate(kind, bytes)?,
        };
        Ok(self.keep(buffer))
    }

    pub(super) fn address(&self, buffer: i64) -> Result<u64, Failure> {
        let buffer = self.buffer(buffer)?;
        let host = || buffer.host_address().map(|address| address.as_ptr().addr() as u64);
        Ok(buffer.device_address().or_else(host).unwrap_or(0))
    }

    pub(super) fn fill(&self, buffer: i64, byte: u8) -> Result<(), Failure> {
        let buffer = self.buffer(buffer)?;
        match buffer.place().kind {
            MemoryKind::Device | MemoryKind::Unified => self.device()?.fill(&buffer, byte)?,
            _ => buffer.write()?.fill(byte),
        }
        Ok(())
    }

    pub(super) fn compare(&self, buffer: i64, byte: u8) -> Result<(), Failure> {
        let buffer = self.buffer(buffer)?;
        let buffer = match buffer.place().kind {
            MemoryKind::Device | MemoryKind::Unified => self.device()?.read(&buffer)?,
            _ => buffer,
        };
        let view = buffer.read()?;
        let different = || view.iter().enumerate().filter(|(_, found)| **found != byte);
        match different().next() {
            Some((at, _)) => Err(Failure::Different { at, count: different().count() }),
            None => Ok(()),
        }
    }

    pub(super) fn drop_buffer(&self, buffer: i64) -> Result<(), Failure> {
        self.buffers.drop(buffer)
    }

    pub(super) fn drain(&self) -> Result<(), Failure> {
        self.importer.drain()?;
        self.device.as_ref().map_or(Ok(()), device::Device::drain)
    }

    pub(super) fn imported(&self) -> i64 {
        i64::try_from(self.importer.resource_counts().allocations).unwrap_or(i64::MAX)
    }

    pub(super) fn protocol_stream(&self) -> Result<i64, Failure> {
        Ok(self.device()?.protocol_stream())
    }

    pub(super) fn is_busy(&self) -> Result<bool, Failure> {
        self.device()?.is_busy()
    }

    /// # Safety
    /// * As for `transload_probe_dlpack_export`.
    pub(super) unsafe fn export(&self, buffer: i64, wish: &Wish) -> Result<*mut c_void, Failure> {
        let buffer = self.buffer(buffer)?;
        let dtype = DLDataType::new(DLDataTypeCode(wish.code), wish.bits, wish.lanes);
        let shape = match wish.ndim {
            0 => &[],
            // SAFETY: so many numbers, by the caller's promise.
            ndim => unsafe { slice::from_raw_parts(wish.shape, ndim as usize) },
        };
        let mut export = Export::new(&buffer, dtype).shape(shape);
        if wish.device_type != 0 {
            let device_type = DLDeviceType(wish.device_type);
            export = export.on_device(DLDevice { device_type, device_id: wish.device_id });
        }
        if wish.read_only != 0 {
            export = export.read_only();
        }
        if let Some(device) = &self.device {
            let stream = (wish.stream_is_none == 0).then_some(wish.stream);
            // SAFETY: the caller's promise.
            export = unsafe { device.for_consumer(export, stream) }?;
        }
        Ok(match wish.versioned {
            0 => export.unversioned()?.into_raw().cast(),
            _ => export.versioned()?.into_raw().cast(),
        })
    }

    /// # Safety
    /// * As for `transload_probe_dlpack_import`.
    pub(super) unsafe fn import<M: Form + 'static>(&self, tensor: *mut M) -> Result<i64, Failure> {
        let behind = match &self.device {
            Some(device) => vec![device.fence()?],
            None => Vec::new(),
        };
        // SAFETY: the caller's promise; the producer has put the session's stream behind its work.
        let tensor = unsafe { ManagedTensor::from_raw(tensor, &behind) }?;
        match self.importer.import(tensor) {
            Ok(imported) => Ok(self.keep(imported.into_buffer())),
            Err(refused) => {
                let error = refused.error().clone();
                // The capsule has it still, and deletes it.
                let _the_callers = refused.into_tensor().into_raw();
                Err(error.into())
            }
        }
    }

    pub(super) fn device(&self) -> Result<&device::Device, Failure> {
        self.device.as_ref().ok_or_else(|| refused("this session is of the host alone"))
    }

    pub(super) fn keep(&self, buffer: RawBuffer) -> i64 {
        self.buffers.keep(buffer)
    }

    pub(super) fn buffer(&self, number: i64) -> Result<RawBuffer, Failure> {
        self.buffers.get(number)
    }
}

#[cfg(any(target_os = "linux", windows))]
pub(super) mod device {
    use transload::{
        Runtime,
        cuda::{CudaBackendConfig, CudaGpu, CudaStream},
    };
    use transload_core::{Fence, MemoryKind, Pattern, RawBuffer, ResourceCounts, Result};
    use transload_dlpack::{ConsumerStream, Export, Importer, protocol_stream};

    use crate::{dlpack::adopt::Adopted, roundtrip::Failure};

    pub(crate) struct Device {
        pub(crate) rt: Runtime,
        pub(crate) gpu: CudaGpu,
        stream: CudaStream,
        pub(crate) adopted: Adopted,
    }

    impl Device {
        pub(super) fn open(ordinal: u32) -> Result<Self> {
            let config = CudaBackendConfig::default().with_devices([ordinal]);
            let rt = Runtime::builder().cuda(config).discover()?;
            let gpu = rt.cuda(ordinal)?;
            let stream = gpu.stream()?;
            Ok(Self { rt, gpu, stream, adopted: Adopted::default() })
        }

        pub(super) fn importer(&self) -> Importer {
            Importer::new().with_device(self.gpu.device())
        }

        pub(super) fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
            self.gpu.memory()?.allocate(kind, bytes)
        }

        pub(super) fn fill(&self, buffer: &RawBuffer, byte: u8) -> Result<()> {
            use transload_core::{Operation, Timing, submit};

            let fill = Operation::Fill { dst: buffer, pattern: Pattern::U8(byte) };
            submit(&self.stream, &fill, Timing::Off).map(drop)
        }

        pub(super) fn read(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
            // Kept when dropped: while the driver frees pinned memory behind a kernel, nearly every call of the process waits.
            let back = self.rt.allocate(self.gpu.id(), MemoryKind::Pinned, buffer.len())?;
            self.stream.copy_to_host_async(buffer, &back).wait()?;
            Ok(back)
        }

        pub(super) fn fence(&self) -> Result<Fence> {
            self.stream.fence()
        }

        pub(super) fn protocol_stream(&self) -> i64 {
            protocol_stream(&self.stream)
        }

        pub(super) fn is_busy(&self) -> Result<bool, Failure> {
            Ok(!self.stream.is_ready()?)
        }

        /// # Safety
        /// * As for `Export::for_consumer`.
        pub(super) unsafe fn for_consumer<'a>(
            &self,
            export: Export<'a>,
            stream: Option<i64>,
        ) -> Result<Export<'a>> {
            let stream = ConsumerStream::from_protocol(stream)?;
            // SAFETY: the caller's promise.
            unsafe { export.for_consumer(self.gpu.device(), stream) }
        }

        pub(super) fn drain(&self) -> Result<(), Failure> {
            self.adopted.forget();
            Ok(self.rt.drain()?)
        }

        /// Drops everything of the session's, and returns what is alive even so.
        pub(super) fn drained(self) -> Result<ResourceCounts> {
            let Self { rt, gpu, stream, adopted } = self;
            drop((gpu, stream, adopted));
            rt.drain()?;
            let mut counts = rt.manager().resource_counts().into_iter().map(|(_, counts)| counts);
            Ok(counts.find(|counts| !counts.is_empty()).unwrap_or_default())
        }
    }
}

#[cfg(not(any(target_os = "linux", windows)))]
pub(super) mod device {
    use transload_core::{Error, ErrorKind, Fence, MemoryKind, RawBuffer, ResourceCounts, Result};
    use transload_dlpack::{Export, Importer};

    use crate::roundtrip::Failure;

    /// There is none.
    pub(crate) enum Device {}

    impl Device {
        pub(super) fn open(_: u32) -> Result<Self> {
            Err(Error::new(ErrorKind::NoDriver, "there is no CUDA on this platform"))
        }

        pub(super) fn importer(&self) -> Importer {
            match *self {}
        }

        pub(super) fn allocate(&self, _: MemoryKind, _: usize) -> Result<RawBuffer> {
            match *self {}
        }

        pub(super) fn fill(&self, _: &RawBuffer, _: u8) -> Result<()> {
            match *self {}
        }

        pub(super) fn read(&self, _: &RawBuffer) -> Result<RawBuffer> {
            match *self {}
        }

        pub(super) fn fence(&self) -> Result<Fence> {
            match *self {}
        }

        pub(super) fn protocol_stream(&self) -> i64 {
            match *self {}
        }

        pub(super) fn is_busy(&self) -> Result<bool, Failure> {
            match *self {}
        }

        /// # Safety
        /// * None: it is never called.
        pub(super) unsafe fn for_consumer<'a>(&self, _: Export<'a>, _: Option<i64>) -> Result<Export<'a>> {
            match *self {}
        }

        pub(super) fn drain(&self) -> Result<(), Failure> {
            match *self {}
        }

        pub(super) fn drained(self) -> Result<ResourceCounts> {
            match self {}
        }
    }
}
