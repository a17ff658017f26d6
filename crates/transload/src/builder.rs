//! Settings of a runtime.

use std::{fmt, future::Future, iter, sync::Arc};

use transload_backend_cpu::CpuBackendBuilder;
use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Observer, Result, events::report,
};
use transload_executor::{Executor, block_on};
use transload_transfer::{CrossBackendTransferManager, ManagerBuilder, STAGING_BUFFER, Sampling};

use crate::{
    Runtime,
    families::{CudaConfig, CudaFamily, DeviceFamily, connect, is_wgpu, limit_pinned},
    runtime::Parts,
};

/// Settings of a [`Runtime`], made by [`Runtime::builder`].
///
/// ```
/// use transload::{Runtime, Sampling};
///
/// let rt = Runtime::builder().threads(4).sampling(Sampling::Every(1)).without("cuda").discover()?;
/// assert_eq!(rt.devices().len(), 1);
/// # Ok::<(), transload::Error>(())
/// ```
#[derive(Default)]
#[must_use = "nothing is made before `discover`"]
pub struct RuntimeBuilder {
    cpu: CpuBackendBuilder,
    cuda: CudaConfig,
    backends: Vec<Arc<dyn Backend>>,
    families: Vec<Arc<dyn DeviceFamily>>,
    without: Vec<&'static str>,
    manager: ManagerBuilder,
    observer: Option<Arc<dyn Observer>>,
    threads: Option<usize>,
    pinned_limit: Option<u64>,
    staging_limit: Option<u64>,
    #[cfg(feature = "calibration")]
    calibration: crate::calibration::CalibrationStore,
}

impl RuntimeBuilder {
    /// Sets how the host's backend is made.
    pub fn cpu(mut self, settings: CpuBackendBuilder) -> Self {
        self.cpu = settings;
        self
    }

    /// Sets how the CUDA backend is made: its devices, streams and limits. Feature `cuda`, on Linux and Windows.
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    pub fn cuda(mut self, settings: transload_backend_cuda::CudaBackendConfig) -> Self {
        self.cuda = settings;
        self
    }

    /// Looks for wgpu's devices too: those of Vulkan as `wgpu:0` and so on, or without any those of DX12 or OpenGL; on macOS those of Metal,
    /// as `metal:0` and so on. Without this call none are looked for, since a CUDA device is usually one of them, and would be there
    /// twice. Copies between the two, if the feature `cuda` has found it, stay on the GPU. With devices of a framework in the settings, uses these. Feature `wgpu`, on Linux, Windows and macOS.
    #[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
    pub fn wgpu(self, settings: transload_backend_wgpu::WgpuBackendConfig) -> Self {
        self.family(Arc::new(crate::families::WgpuFamily(settings)))
    }

    /// Adds a backend that exists. A family of which it has a device is not looked for. The devices of a `CudaBackend` are also those of
    /// `Runtime::cuda`.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backends.push(backend);
        self
    }

    /// Adds a family of devices to look for, after the others.
    pub fn family(mut self, family: Arc<dyn DeviceFamily>) -> Self {
        self.families.push(family);
        self
    }

    /// Does not look for a family of devices, such as `"cuda"`.
    pub fn without(mut self, family: &'static str) -> Self {
        self.without.push(family);
        self
    }

    /// Gives the runtime worker threads of its own, at most so many: 1 to 1024. By default all runtimes of the process share as many
    /// as there are processors, at most 16. The workers copy on the host, move chunks through staging buffers, and wait for devices on
    /// behalf of tasks.
    ///
    /// The limit does not cover threads that block in a driver, the kernel or code of yours; they start on demand, and the first three
    /// kinds end when they are idle:
    /// - calls behind `_async` methods and awaited copies: at most 32 of the runtime, 8 of the manager, 8 for each device, and one for each
    ///   stream that copies are awaited on; besides, one for each `load_async` and `calibrate_async`, and one for awaited drains;
    /// - pinning of staging buffers: at most 8 for each device;
    /// - reading files and streams: `LoadOptions::readers` for each load, one for each `io::Blocking`;
    /// - of each CUDA device one that frees memory and at most 4 that drop owners of adopted memory; of the process one that waits for
    ///   streams on behalf of tasks, and one for callbacks.
    pub fn threads(mut self, most: usize) -> Self {
        self.threads = Some(most);
        self
    }

    /// Sets the most bytes of host memory that all CUDA devices together have pinned: pinned and mapped arrays, also those that are only
    /// kept for reuse, staging buffers and registrations. What is only kept gives way. Beyond the limit an allocation is
    /// [`OutOfMemory`](ErrorKind::OutOfMemory), and copies use methods that need no pinned memory. Default: no limit.
    ///
    /// Not for backends given by [`backend`](Self::backend) or found by a [`family`](Self::family) of yours, which others may use too: if
    /// one offers pinned memory, `discover` is an [`InvalidArgument`](ErrorKind::InvalidArgument). Their own settings limit them,
    /// such as `CudaBackendConfig::with_pinned_limit`. Pinned memory of wgpu's devices is their driver's, and does not count.
    pub fn pinned_limit(mut self, bytes: u64) -> Self {
        self.pinned_limit = Some(bytes);
        self
    }

    /// Sets the most bytes of pinned staging buffers for each device, at least 4 MiB, which is one: of transfers, of [`io`](crate::io)
    /// and of loads. One is always left to transfers; streams and loads use pageable memory beyond the limit. Default: for transfers
    /// two for each of the host's processors, at most 16, and no limit for streams and loads.
    pub fn staging_limit(mut self, bytes: u64) -> Self {
        self.staging_limit = Some(bytes);
        self
    }

    /// Sets who is told of every transfer; see [`ManagerBuilder::observer`](crate::backend::ManagerBuilder::observer).
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets which transfers are measured by the device's clock; by default one in 64.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.manager = self.manager.sampling(sampling);
        self
    }

    /// Sets whether transfers correct the costs that methods are chosen by; see
    /// [`ManagerBuilder::refinement`](crate::backend::ManagerBuilder::refinement). Default: yes.
    pub fn refinement(mut self, is_on: bool) -> Self {
        self.manager = self.manager.refinement(is_on);
        self
    }

    /// Sets whether the second best method is tried now and then; see
    /// [`ManagerBuilder::exploration`](crate::backend::ManagerBuilder::exploration). Default: yes.
    pub fn exploration(mut self, is_on: bool) -> Self {
        self.manager = self.manager.exploration(is_on);
        self
    }

    /// Sets whether arrays in ordinary memory that are copied again and again are registered with the driver; see
    /// [`ManagerBuilder::registration`](crate::backend::ManagerBuilder::registration). Default: yes. Never done beside a
    /// [`pinned_limit`](Self::pinned_limit).
    pub fn registration(mut self, is_on: bool) -> Self {
        self.manager = self.manager.registration(is_on);
        self
    }

    /// Sets where calibrations are kept. The runtime uses the one there, if it fits this machine, and
    /// [`Runtime::calibrate`] replaces it. Default: the user's cache directory. Feature `calibration`.
    #[cfg(feature = "calibration")]
    pub fn calibration(mut self, store: crate::calibration::CalibrationStore) -> Self {
        self.calibration = store;
        self
    }

    /// Registers the host, and every family of devices that this machine and this build have. A family that is not there
    /// is no error: [`Runtime::absent`] says why. Blocks while drivers are loaded.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a setting that is not valid, or two given backends with one device. A family whose device is there is
    /// absent;
    /// [`ErrorKind::Unsupported`] on a worker of an executor of this library, which must not block.
    pub fn discover(self) -> Result<Runtime> {
        block_on(self.discover_async())?
    }

    /// Like [`discover`](Self::discover), but drivers are loaded by other threads.
    ///
    /// # Errors
    /// As for `discover`.
    pub fn discover_async(self) -> impl Future<Output = Result<Runtime>> + Send + 'static {
        self.look_for_all()
    }

    async fn look_for_all(self) -> Result<Runtime> {
        let Self { mut cpu, mut cuda, backends, families, without, mut manager, .. } = self;
        let Self { observer, threads, pinned_limit, staging_limit, .. } = self;
        #[cfg(feature = "calibration")]
        let calibration = self.calibration;
        if let Some(bytes) = staging_limit {
            if bytes < STAGING_BUFFER {
                let text = format!("a staging limit of {bytes} bytes; valid are at least {STAGING_BUFFER}");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            manager = manager.staging_limit(bytes);
        }
        if let Some(bytes) = pinned_limit {
            limit_pinned(&mut cuda, bytes);
        }
        let ours: Arc<dyn DeviceFamily> = Arc::new(CudaFamily(cuda));
        let families = iter::once(Arc::clone(&ours)).chain(families).collect::<Vec<Arc<dyn DeviceFamily>>>();
        let names: Vec<_> = families.iter().map(|family| family.name()).collect();
        if let Some(unknown) = without.iter().find(|family| !names.contains(family)) {
            let text = format!("no family {unknown:?} is looked for; valid are {names:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let executor = match threads {
            None => Executor::shared(),
            Some(most) => {
                let own = Executor::with_threads(most)?;
                cpu = cpu.executor(&own);
                own
            }
        };
        #[cfg(feature = "profiler")]
        let observers = Arc::new(crate::profiler::ObserverSlot::new(observer));
        #[cfg(feature = "profiler")]
        let observer = Some(Arc::clone(&observers) as _);
        if let Some(observer) = observer {
            manager = manager.observer(observer);
        }
        let manager = manager.executor(&executor).build();
        // Those of wgpu are connected with CUDA, which is looked for first.
        let (of_wgpu, others): (Vec<_>, Vec<_>) =
            backends.into_iter().partition(|backend: &Arc<dyn Backend>| is_wgpu(&**backend));
        for backend in others {
            check_pinned_limit(&*backend, pinned_limit)?;
            manager.register_backend(backend)?;
        }
        let host = cpu.build()?;
        if !has(&manager, DeviceId::Cpu.family()) {
            manager.register_backend(Arc::clone(&host) as _)?;
        }
        let mut absent = Vec::new();
        let is_given = |family: &str| of_wgpu.iter().any(|backend| is_of(&backend.devices(), family));
        for family in families.iter().filter(|it| !has(&manager, it.name()) && !is_given(it.name())) {
            let opened = if without.contains(&family.name()) {
                let text = "it was left out by `RuntimeBuilder::without`";
                Err(Error::new(ErrorKind::Unsupported, text))
            } else {
                family.discover(&executor).await
            };
            if let Ok(opened) = &opened
                && !Arc::ptr_eq(family, &ours)
            {
                check_pinned_limit(&**opened, pinned_limit)?;
                connect(&manager, opened);
            }
            if let Err(reason) = opened.and_then(|opened| manager.register_backend(opened)) {
                report::family_absent(family.name(), &reason);
                absent.push((family.name(), reason));
            }
        }
        for backend in of_wgpu {
            connect(&manager, &backend);
            manager.register_backend(backend)?;
        }
        let runtime = Runtime::new(Parts {
            manager,
            absent,
            host,
            executor,
            #[cfg(feature = "profiler")]
            observers,
            #[cfg(feature = "calibration")]
            calibration,
        });
        #[cfg(feature = "calibration")]
        if *runtime.calibration_store() != crate::calibration::CalibrationStore::None {
            let stored = runtime.clone();
            let used = runtime.call(move || {
                stored.use_stored_calibration();
                Ok(())
            });
            // The executor reports a thread that the system refuses; the built-in costs are used then.
            let _ = used.await;
        }
        #[cfg(feature = "profiler")]
        if let Some(path) = crate::profiler::trace_variable() {
            let recorded = runtime.clone();
            let started = runtime.call(move || {
                recorded.record(&path);
                Ok(())
            });
            // The executor reports a thread that the system refuses; nothing is recorded then.
            let _ = started.await;
        }
        Ok(runtime)
    }
}

/// Refuses a limit that a backend, which was made elsewhere, would not know of.
fn check_pinned_limit(backend: &dyn Backend, limit: Option<u64>) -> Result<()> {
    let pins =
        backend.devices().iter().any(|info| info.kinds.contains(&MemoryKind::Pinned)) && !is_wgpu(backend);
    match limit {
        Some(_) if pins => {
            let text = format!(
                "`pinned_limit` does not reach the {} backend, which was made elsewhere; set its own limit there, such as `CudaBackendConfig::with_pinned_limit`",
                backend.name()
            );
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
        _ => Ok(()),
    }
}

fn has(manager: &CrossBackendTransferManager, family: &str) -> bool {
    is_of(&manager.devices(), family)
}

fn is_of(devices: &[DeviceInfo], family: &str) -> bool {
    devices.iter().any(|info| info.id.family() == family)
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("cpu", &self.cpu)
            .field("cuda", &self.cuda)
            .field("backends", &self.backends)
            .field("families", &self.families.iter().map(|family| family.name()).collect::<Vec<_>>())
            .field("without", &self.without)
            .field("manager", &self.manager)
            .field("observed", &self.observer.is_some())
            .field("threads", &self.threads)
            .field("pinned_limit", &self.pinned_limit)
            .field("staging_limit", &self.staging_limit)
            .finish_non_exhaustive()
    }
}
