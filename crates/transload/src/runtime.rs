//! The devices of this machine behind one handle, and the reasons for those that are not there.

use std::{fmt, sync::Arc};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, Buffer, DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Place, Pod, RawBuffer, Result,
    SharedBuffer, bytes_of_elements, events::report, mutant,
};
use transload_executor::{BlockingKey, Executor};
use transload_transfer::{
    CopyBuilder, CopyManyBuilder, CrossBackendTransferManager, Plan, TransferOptions, TransferStats,
};

use crate::{
    Array, RuntimeBuilder,
    drain::{self, Drains},
    upload::own_kind,
};

/// Calls of one runtime that may block at once; further ones wait in order.
const MAX_CALLS: usize = 32;

/// The memories and devices of this machine, and the transfers between them. Clones are cheap and the same runtime. All
/// methods may be called from any thread.
///
/// Methods that return a future own what they need (the future is `'static`), start nothing before it is polled, and do not block:
/// what takes longer runs on the library's threads. The exception is [`CopyBuilder::submit`], whose future is the end of a copy
/// that it submitted: [what blocks](CopyBuilder#what-blocks-and-what-keeps-order) is one table. Dropping the last clone neither waits for work in flight nor stops it; [`drain`](Self::drain) waits.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    /// Dropped first: its trace ends while the devices are there.
    #[cfg(feature = "profiler")]
    recording: std::sync::OnceLock<Arc<crate::profiler::Recording>>,
    parts: Parts,
    /// The threads of `parts.executor`, counted apart: draining the manager does not wait for these calls, of which one may do that.
    calls: Executor,
    call_key: BlockingKey,
    drains: Drains,
    /// Dropped last.
    _events: EmitOnDrop,
}

/// Emits the events that the parts of a runtime report when they are dropped, or that no later call would emit.
struct EmitOnDrop;

impl Drop for EmitOnDrop {
    fn drop(&mut self) {
        report::emit_deferred();
    }
}

pub(crate) struct Parts {
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) absent: Vec<(&'static str, Error)>,
    pub(crate) host: Arc<CpuBackend>,
    pub(crate) executor: Executor,
    #[cfg(feature = "profiler")]
    pub(crate) observers: Arc<crate::profiler::ObserverSlot>,
    #[cfg(feature = "calibration")]
    pub(crate) calibration: crate::calibration::CalibrationStore,
}

impl Runtime {
    /// Registers the host, and every family of devices that this machine and this build have. A family that is not there
    /// is no error: [`absent`](Self::absent) says why. Blocks while drivers are loaded, up to some hundred milliseconds.
    ///
    /// # Errors
    /// That of a backend given by [`RuntimeBuilder::backend`] whose device another one has.
    pub fn discover() -> Result<Self> {
        Self::builder().discover()
    }

    /// Like [`discover`](Self::discover), but drivers are loaded by other threads.
    ///
    /// # Errors
    /// As for `discover`.
    pub fn discover_async() -> impl Future<Output = Result<Self>> + Send + 'static {
        Self::builder().discover_async()
    }

    /// Returns the settings to make a runtime with: limits, an observer, other backends.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    pub(crate) fn new(parts: Parts) -> Self {
        // Read now: a thread that calibrates may be bound to one.
        let _processors = transload_executor::processors();
        let (calls, call_key) = (parts.executor.group(), BlockingKey::new(MAX_CALLS));
        let inner = Inner {
            #[cfg(feature = "profiler")]
            recording: std::sync::OnceLock::new(),
            calls,
            call_key,
            drains: Drains::default(),
            parts,
            _events: EmitOnDrop,
        };
        Self { inner: Arc::new(inner) }
    }

    #[cfg(feature = "profiler")]
    pub(crate) fn observers(&self) -> &Arc<crate::profiler::ObserverSlot> {
        &self.inner.parts.observers
    }

    /// Starts to record a trace until the last handle is dropped. A failure is reported as an event.
    #[cfg(feature = "profiler")]
    pub(crate) fn record(&self, path: &std::path::Path) {
        if let Some(recording) = crate::profiler::Recording::of_runtime(self, path) {
            let _first = self.inner.recording.set(recording);
        }
    }

    /// Returns the transfer manager over all devices.
    #[must_use]
    pub fn manager(&self) -> &CrossBackendTransferManager {
        &self.inner.parts.manager
    }

    /// Returns the host's backend, which makes buffers over host memory of other owners:
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// static TABLE: [u8; 4] = [1, 2, 3, 4]; // Or a mapped file, or whatever is `AsRef<[u8]>`.
    /// let table = rt.array::<u8>(rt.cpu().wrap_readonly(&TABLE))?;
    /// assert_eq!(*table.read()?, [1, 2, 3, 4]);
    /// # Ok::<(), transload::Error>(())
    /// ```
    #[must_use]
    pub fn cpu(&self) -> &Arc<CpuBackend> {
        &self.inner.parts.host
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.inner.parts.executor
    }

    /// Returns each backend once, with that of [`cpu`](Self::cpu) if the manager has another one for the host.
    pub(crate) fn backends(&self) -> Vec<Arc<dyn Backend>> {
        let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
        let devices = self.devices().into_iter();
        let registered = devices.filter_map(|info| self.manager().backend(info.id).ok());
        let host = Some(Arc::clone(self.cpu()) as _).filter(|_| !mutant!("transload/own-host-is-counted"));
        for backend in registered.chain(host) {
            if !backends.iter().any(|other| Arc::ptr_eq(other, &backend)) {
                backends.push(backend);
            }
        }
        backends
    }

    #[cfg(feature = "calibration")]
    pub(crate) fn calibration_store(&self) -> &crate::calibration::CalibrationStore {
        &self.inner.parts.calibration
    }

    /// Returns the devices, the host first, the others in the order of their registration.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let mut devices = self.manager().devices();
        devices.sort_by_key(|info| !info.id.is_cpu());
        devices
    }

    /// Returns the families that were looked for and are not there, each with the reason.
    #[must_use]
    pub fn absent(&self) -> &[(&'static str, Error)] {
        &self.inner.parts.absent
    }

    /// Returns what is known of a device.
    ///
    /// # Errors
    /// That of [`explain`](Self::explain) if it is not there.
    pub fn device(&self, device: DeviceId) -> Result<DeviceInfo> {
        self.devices().into_iter().find(|info| info.id == device).ok_or_else(|| self.explain(device))
    }

    /// Returns why a device is not there, as every call of the runtime does that names one: an [`ErrorKind::UnknownDevice`] with the
    /// devices that are there. If its family is [absent](Self::absent), it is caused by the reason, whose kind tells more, such as
    /// [`ErrorKind::NoDriver`].
    ///
    /// For a device that is there it is an [`ErrorKind::InvalidArgument`] that says so.
    ///
    /// ```
    /// use transload::{DeviceId, Error, ErrorKind, MemoryKind, Runtime};
    ///
    /// let rt = Runtime::builder().without("cuda").discover()?;
    /// let error = rt.allocate(DeviceId::Cuda(64), MemoryKind::Device, 4096).unwrap_err();
    /// assert_eq!((error.kind(), error.to_string()), (ErrorKind::UnknownDevice, rt.explain(DeviceId::Cuda(64)).to_string()));
    /// let reason = error.cause().and_then(|cause| cause.downcast_ref::<Error>());
    /// println!("{error}"); // There is no device cuda:64; there are cpu; cuda is absent: it was left out by ...
    /// assert_eq!(reason.map(Error::kind), Some(ErrorKind::Unsupported));
    /// # Ok::<(), transload::Error>(())
    /// ```
    #[must_use]
    pub fn explain(&self, device: DeviceId) -> Error {
        let devices = self.devices();
        if devices.iter().any(|info| info.id == device) {
            return Error::new(ErrorKind::InvalidArgument, format!("{device} is there"));
        }
        let there: Vec<String> = devices.iter().map(|info| info.id.to_string()).collect();
        let (kind, family) = (ErrorKind::UnknownDevice, device.family());
        let text = format!("there is no device {device}; there are {}", there.join(", "));
        if let Some((_, reason)) = self.absent().iter().find(|(absent, _)| *absent == family) {
            return Error::caused_by(kind, format!("{text}; {family} is absent"), reason.clone());
        }
        if devices.iter().any(|info| info.id.family() == family) {
            return Error::new(kind, text);
        }
        let add = if matches!(family, "wgpu" | "metal") { "wgpu` (feature `wgpu`)" } else { "family`" };
        let text = format!("{text}; this runtime has no {family} backend, which `RuntimeBuilder::{add} adds");
        Error::new(kind, text)
    }

    /// Returns why a place's device is not there, if that is the error.
    fn with_absence(&self, places: [Place; 2], error: Error) -> Error {
        let is_absent = |place: &Place| !self.devices().iter().any(|info| info.id == place.device);
        match places.into_iter().find(is_absent) {
            Some(place) if error.kind() == ErrorKind::UnknownDevice => self.explain(place.device),
            _ => error,
        }
    }

    /// Takes a vector over as an array, without a copy; [`Array::try_into_vec`] gives it back. An empty one gives an empty array.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `T` has no size.
    pub fn host<T: Pod>(&self, elements: Vec<T>) -> Result<Array<T>> {
        let host = &self.inner.parts.host;
        Array::new(host.wrap_vec(elements), Arc::clone(host) as _)
    }

    /// Allocates `len` elements in the host's memory, all bytes zero. From 4 MiB on it lies on huge pages.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc).
    pub fn zeros<T: Pod>(&self, len: usize) -> Result<Array<T>> {
        let host = &self.inner.parts.host;
        let bytes = bytes_of_elements::<T>(len.max(1))?;
        Array::new(host.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?, Arc::clone(host) as _)?
            .slice(..len)
    }

    /// Allocates `len` elements in a kind of memory. Their content is undefined. An array without elements keeps the memory of one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `T` has no size or the size in bytes overflows; those of [`allocate`](Self::allocate).
    pub fn alloc<T: Pod>(&self, device: DeviceId, kind: MemoryKind, len: usize) -> Result<Array<T>> {
        // No memory has 0 bytes.
        self.array(self.allocate(device, kind, bytes_of_elements::<T>(len.max(1))?)?)?.slice(..len)
    }

    /// Returns a buffer's bytes as elements, without a copy: of another library's tensor, of a part of a model.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they are no whole number of elements, or not aligned for them, or if `T` has no size;
    /// that of [`explain`](Self::explain) for memory of a device that is not there.
    pub fn array<T: Pod>(&self, buffer: RawBuffer) -> Result<Array<T>> {
        let place = buffer.place();
        let backend = self.manager().backend(place.device);
        Array::new(buffer, backend.map_err(|error| self.with_absence([place; 2], error))?)
    }

    /// Allocates `bytes` of a kind of memory.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::allocate`]; for a device that is not there that of
    /// [`explain`](Self::explain).
    pub fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.device(device)?;
        self.manager().allocate(device, kind, bytes)
    }

    /// Returns a copy of all elements of `src` over all of `dst`, which has as many. Nothing happens before it is
    /// [submitted](CopyBuilder::submit), [waited for](CopyBuilder::wait) or `.await`ed. To copy a part, slice the arrays. Arrays of two element
    /// types are not copied to each other:
    ///
    /// ```compile_fail
    /// let rt = transload::Runtime::discover()?;
    /// rt.copy(&rt.zeros::<f32>(4)?, &rt.zeros::<u32>(4)?).wait()?;
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// Any [`Buffer`] will do, such as unified memory, or a `&dyn Buffer<T>` of any kind. Bytes without a type are copied by
    /// [`CrossBackendTransferManager::copy`]. Arrays without elements are refused, with [`ErrorKind::InvalidArgument`];
    /// [`copy_many`](Self::copy_many) takes them.
    #[inline]
    pub fn copy<'a, T: Pod>(
        &'a self,
        src: &'a (impl Buffer<T> + ?Sized),
        dst: &'a (impl Buffer<T> + ?Sized),
    ) -> CopyBuilder<'a> {
        self.manager().copy(src.raw(), dst.raw())
    }

    /// Returns copies of all elements of each first array over all of its second, many at once: one report, and errors by index. Nothing
    /// happens before they are [submitted](CopyManyBuilder::submit), [waited for](CopyManyBuilder::wait) or `.await`ed. Pairs of several
    /// element types, and lists that are copied again and again, go by [`CrossBackendTransferManager::copy_many`].
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let (layers, there) = (rt.host((0..4096_u32).collect())?, rt.zeros::<u32>(4096)?);
    /// let parts = |of: &transload::Array<u32>| [of.slice(1024..2048), of.slice(..3)].into_iter().collect::<Result<Vec<_>, _>>();
    /// let (from, to) = (parts(&layers)?, parts(&there)?);
    /// let report = rt.copy_many(from.iter().zip(&to)).wait()?;
    /// println!("{report:#}");
    /// assert_eq!(there.read()?[1024..1027], [1024, 1025, 1026]);
    /// # assert_eq!(report.bytes, 4 * 1027);
    /// # Ok::<(), transload::Error>(())
    /// ```
    pub fn copy_many<'a, T: Pod>(
        &'a self,
        pairs: impl IntoIterator<Item = (&'a (impl Buffer<T> + ?Sized + 'a), &'a (impl Buffer<T> + ?Sized + 'a))>,
    ) -> CopyManyBuilder<'a> {
        let pairs = pairs.into_iter().map(|(src, dst)| (src.raw().clone(), dst.raw().clone()));
        self.manager().copy_many(pairs.collect::<Vec<_>>())
    }

    /// Returns copies of blocks of paged caches: for each layer, block `from[i]` of the source's pool over block `to[i]` of the
    /// destination's. Block `i` is the elements from `i * block` to `(i + 1) * block` of its pool; one array may be the pools of several
    /// layers, sliced. Errors are those of [`CrossBackendTransferManager::copy_blocks`]. To copy the same blocks again and again,
    /// [record](CopyManyBuilder::record) the builder:
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// // Two layers of 64 blocks of 256 elements, on the device and evicted to the host.
    /// let cache = [rt.zeros::<f32>(64 * 256)?, rt.zeros::<f32>(64 * 256)?];
    /// let evicted = [rt.host(vec![1_f32; 64 * 256])?, rt.host(vec![1_f32; 64 * 256])?];
    /// let report = rt.copy_blocks((&cache, &[17, 3, 4]), (&evicted, &[0, 1, 2]), 256)?.wait()?;
    /// assert_eq!(report.bytes, 2 * 3 * 256 * 4);
    /// assert_eq!(evicted[1].read()?[2 * 256..][..257], [[0.0; 256].as_slice(), &[1.0]].concat());
    /// # Ok::<(), transload::Error>(())
    /// ```
    pub fn copy_blocks<T: Pod>(
        &self,
        (sources, from): (&[impl Buffer<T>], &[usize]),
        (destinations, to): (&[impl Buffer<T>], &[usize]),
        block: usize,
    ) -> Result<CopyManyBuilder<'_>> {
        let bytes = block.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfRange,
                format!("{block} elements of {} bytes exceed any memory", size_of::<T>()),
            )
        })?;
        let sources: Vec<RawBuffer> = sources.iter().map(|pool| pool.raw().clone()).collect();
        let destinations: Vec<RawBuffer> = destinations.iter().map(|pool| pool.raw().clone()).collect();
        self.manager().copy_blocks((&sources, from), (&destinations, to), bytes)
    }

    /// Returns what a transfer would do, with its predicted cost and the reasons against other methods. Nothing is moved.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::plan`].
    pub fn plan(&self, src: Place, dst: Place, bytes: u64) -> Result<Plan> {
        let plan = self.manager().plan(src, dst, bytes, &TransferOptions::new());
        plan.map_err(|error| self.with_absence([src, dst], error))
    }

    /// Returns the statistics of the transfers so far: by path, method and size class, without empty classes.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// rt.copy(&rt.host(vec![1_u8; 64])?, &rt.zeros::<u8>(64)?).wait()?;
    /// for stats in rt.stats() {
    ///     println!("{stats}");
    /// }
    /// # assert_eq!(rt.stats().len(), 1);
    /// # Ok::<(), transload::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Vec<TransferStats> {
        self.manager().get_transfer_stats()
    }

    /// Does now what the first transfers from `src` to `dst` would do first, such as making contexts, pinning staging buffers, and making
    /// queues for up to eight in flight at once. Blocks meanwhile, up to some hundred milliseconds.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::prepare`].
    pub fn prepare(&self, src: Place, dst: Place) -> Result<()> {
        let prepared = self.manager().prepare(src, dst, &TransferOptions::new());
        prepared.map_err(|error| self.with_absence([src, dst], error))
    }

    /// Like [`prepare`](Self::prepare), on another thread, from the first poll on. Dropped after that, it is done nevertheless.
    ///
    /// # Errors
    /// As for `prepare`.
    pub fn prepare_async(&self, src: Place, dst: Place) -> impl Future<Output = Result<()>> + Send + use<> {
        let runtime = self.clone();
        self.call(move || runtime.prepare(src, dst))
    }

    /// Returns an array with the same elements that `device` can use: the array itself if the hardware allows, else a copy. May block
    /// the thread until it is copied.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::share`]; that of [`explain`](Self::explain) for a device that is not there.
    pub fn share<T: Pod>(&self, array: &Array<T>, device: DeviceId) -> Result<Array<T>> {
        if array.is_empty() && array.device() != device {
            // No memory has 0 bytes.
            return self.alloc(device, own_kind(device), 0);
        }
        let shared = self.manager().share(array.raw(), device);
        let places = [array.place(), Place::new(device, MemoryKind::Device)];
        let SharedBuffer { buffer, .. } = shared.map_err(|error| self.with_absence(places, error))?;
        self.array(buffer)
    }

    /// Like [`share`](Self::share), on another thread, from the first poll on. Dropped after that, it is done nevertheless, and the copy
    /// freed.
    ///
    /// # Errors
    /// As for `share`.
    pub fn share_async<T: Pod>(
        &self,
        array: &Array<T>,
        device: DeviceId,
    ) -> impl Future<Output = Result<Array<T>>> + Send + use<T> {
        let (runtime, array) = (self.clone(), array.clone());
        self.call(move || runtime.share(&array, device))
    }

    /// Waits for all work in flight, that of dropped futures included, and frees what was dropped while in use. Blocks until then. Also waits for destructors of
    /// owners that other code handed over with its memory or streams: the caller must hold no lock that they need, such as Python's
    /// GIL.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::drain`].
    pub fn drain(&self) -> Result<()> {
        // What was begun by a future that is dropped may still allocate and copy.
        let called = self.inner.calls.drain();
        // The memory of `host` and `zeros` is its own if the manager has another backend for the host.
        called.and(self.manager().drain()).and(self.cpu().drain())
    }

    /// Like [`drain`](Self::drain), on another thread, from the first poll on. Unlike `drain` it may be awaited anywhere. Several run one
    /// after another, on one thread. Dropped after the first poll, it is done nevertheless, and the next drain of this runtime or its
    /// manager returns its error.
    ///
    /// # Errors
    /// As for `drain`; [`ErrorKind::Io`] if the system refuses a thread.
    pub fn drain_async(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        drain::drain(self.clone())
    }

    pub(crate) fn drains(&self) -> &Drains {
        &self.inner.drains
    }

    /// Returns the executor of calls that a drain waits for.
    #[cfg(feature = "calibration")]
    pub(crate) fn calls(&self) -> &Executor {
        &self.inner.calls
    }

    /// Runs what may block, or takes long, on another thread, from the first poll on.
    pub(crate) fn call<R, C>(&self, call: C) -> impl Future<Output = Result<R>> + Send + use<R, C>
    where
        R: Send + 'static,
        C: FnOnce() -> Result<R> + Send + 'static,
    {
        let (calls, key) = (self.inner.calls.clone(), self.inner.call_key.clone());
        async move { calls.spawn_blocking(&key, call).await? }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<DeviceId> = self.devices().iter().map(|info| info.id).collect();
        f.debug_struct("Runtime")
            .field("devices", &devices)
            .field("absent", &self.absent())
            .finish_non_exhaustive()
    }
}
