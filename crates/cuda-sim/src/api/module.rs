//! Modules, whose kernels must have host kernels, and launches.

use std::ffi::{CStr, c_char, c_void};

use super::{Handle, Pointer, count_call, lock_driver, on_current, on_current_stream};
use crate::{
    code::{self, CuResult},
    host_kernel::{self, Launch},
    op::{KernelRun, Work},
    scheduler,
    state::{Function, Guard, Module},
};

fn load(name: &str, module: Pointer<usize>, image: *const c_char) -> CuResult {
    let (mut state, scope) = on_current(name)?;
    if module.is_null() || image.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller promises a module image: text ends with NUL, a binary image begins with a magic number,
    // recognised by its first bytes; both are longer than one byte unless the text is empty.
    let first = unsafe { image.cast::<u8>().read() };
    if !(first.is_ascii_graphic() || first.is_ascii_whitespace()) {
        // An ELF image begins with 0x7F; a fat binary with 0x50 ("P"), handled below.
        return Err(code::NO_BINARY_FOR_GPU);
    }
    // SAFETY: as above; a fat binary's magic number 0xBA55ED50 is not UTF-8 and is read up to its first 0.
    let text = unsafe { CStr::from_ptr(image) };
    let text = text.to_str().map_err(|_| code::NO_BINARY_FOR_GPU)?;
    let host_kernels = host_kernel::of_module(text)?;
    let handle = state.new_handle();
    state.modules.insert(handle, Module { context: scope.context, is_loaded: false, host_kernels });
    module.set(handle as usize)
}

/// Loads a module's code if it is not loaded, for which the driver waits for all work of the device. CUDA does not
/// document when it loads: at the latest for the first launch or a function query.
fn load_now(state: &mut Guard, module: u64, device: u32) {
    if let Some(found) = state.modules.get_mut(&module)
        && !std::mem::replace(&mut found.is_loaded, true)
    {
        scheduler::run_device(state, device);
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    attributes: Pointer<LaunchAttribute>,
    attribute_count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    id: u32,
    _padding: u32,
    value: [u64; 8],
}

/// Enqueues a launch with its grid, its blocks and the bytes of their shared memory. One that `is_early` need not come after the one before
/// it to begin; here it does, but takes no time to begin.
fn enqueue(
    name: &'static str,
    function: Handle,
    stream: Handle,
    (grid, block, shared_bytes): ((u32, u32, u32), (u32, u32, u32), u32),
    parameters: Pointer<Pointer<u8>>,
    extra: *mut *mut c_void,
    is_early: bool,
) -> CuResult {
    let (mut state, _, stream) = on_current_stream(name, stream)?;
    let function = state.function(function.addr() as u64)?;
    let own = state.stream(stream)?;
    let device = own.device;
    if own.context != function.context {
        return Err(code::INVALID_HANDLE);
    }
    if !extra.is_null() {
        return Err(code::NOT_SUPPORTED);
    }
    let fits = |(x, y, z): (u32, u32, u32), limits: (u32, u32, u32)| {
        (1..=limits.0).contains(&x) && (1..=limits.1).contains(&y) && (1..=limits.2).contains(&z)
    };
    let threads = u64::from(block.0) * u64::from(block.1) * u64::from(block.2);
    if !fits(grid, (i32::MAX as u32, 65_535, 65_535)) || !fits(block, (1_024, 1_024, 64)) || threads > 1_024 {
        return Err(code::INVALID_VALUE);
    }
    let (host_kernel, module) = (function.host_kernel, function.module);
    let mut values = Vec::with_capacity(host_kernel.parameters.len());
    for (index, size) in host_kernel.parameters.iter().enumerate() {
        let value = parameters.get_at(index)?;
        let bytes: CuResult<Vec<u8>> = (0..*size).map(|byte| value.get_at(byte)).collect();
        values.push(bytes?);
    }
    let launch = Launch { grid, block, shared_bytes, parameters: values };
    let work = Work::Kernel(Box::new(KernelRun { host_kernel, launch, is_early }));
    if !state.graphs.is_capturing(stream) {
        load_now(&mut state, module, device);
    }
    scheduler::enqueue(&mut state, stream, name, work);
    Ok(())
}

driver! {
    fn cuModuleLoadData(module: Pointer<usize>, image: *const c_char) {
        load(NAME, module, image)
    }

    fn cuModuleLoadDataEx(
        module: Pointer<usize>,
        image: *const c_char,
        _count: u32,
        _options: *mut u32,
        _values: *mut *mut c_void,
    ) {
        load(NAME, module, image)
    }

    fn cuModuleUnload(module: Handle) {
        let mut state = lock_driver()?;
        let module = module.addr() as u64;
        let context = state.modules.get(&module).ok_or(code::INVALID_HANDLE)?.context;
        let device = state.contexts.get(&context).ok_or(code::INVALID_HANDLE)?.device;
        count_call(&mut state, NAME, device)?;
        // Launches in flight have a copy of what they need.
        state.modules.remove(&module);
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(function: Pointer<usize>, module: Handle, name: *const c_char) {
        let (mut state, scope) = on_current(NAME)?;
        if name.is_null() || function.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller promises a string that ends with NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| code::NOT_FOUND)?.to_owned();
        let handle = module.addr() as u64;
        let module = state.modules.get(&handle).ok_or(code::INVALID_HANDLE)?;
        let host_kernel = *module.host_kernels.get(&name).ok_or(code::NOT_FOUND)?;
        let context = module.context;
        if state.device_mut(scope.device).rng.chance(50) {
            load_now(&mut state, handle, scope.device);
        }
        let known = state.functions.iter().find(|(_, known)| known.module == handle && known.name == name);
        if let Some((known, _)) = known {
            return function.set(*known as usize);
        }
        let made = state.new_handle();
        state.functions.insert(made, Function { module: handle, context, name, host_kernel });
        function.set(made as usize)
    }

    #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
    fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: Pointer<Pointer<u8>>,
        extra: *mut *mut c_void,
    ) {
        let shape = ((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared_bytes);
        enqueue(NAME, function, stream, shape, parameters, extra, false)
    }

    fn cuLaunchKernelEx(
        config: Pointer<LaunchConfig>,
        function: Handle,
        parameters: Pointer<Pointer<u8>>,
        extra: *mut *mut c_void,
    ) {
        /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
        const EARLY: u32 = 6;
        if config.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let config = config.get()?;
        let mut is_early = false;
        for index in 0..config.attribute_count as usize {
            // Others are not simulated.
            let attribute = config.attributes.get_at(index)?;
            let value = attribute.value.first().copied().unwrap_or(0) as u32;
            is_early = match attribute.id {
                EARLY => value != 0,
                _ => return Err(code::NOT_SUPPORTED),
            };
        }
        let ([x, y, z], [a, b, c]) = (config.grid, config.block);
        let shape = ((x, y, z), (a, b, c), config.shared_bytes);
        enqueue(NAME, function, config.stream, shape, parameters, extra, is_early)
    }

    fn cuFuncGetAttribute(value: Pointer<i32>, attribute: u32, function: Handle) {
        let (mut state, scope) = on_current(NAME)?;
        let module = state.function(function.addr() as u64)?.module;
        load_now(&mut state, module, scope.device);
        value.set(match attribute {
            // Maximum threads per block.
            0 => 1_024,
            // Static shared, constant and local memory in bytes.
            1..=3 => 0,
            // Registers per thread.
            4 => 16,
            // PTX and binary versions.
            5 => 50,
            6 => 90,
            7 => 0,
            // Maximum dynamic shared memory in bytes.
            8 => 49_152,
            9 => -1,
            _ => return Err(code::INVALID_VALUE),
        })
    }

    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Pointer<usize>, size: Pointer<usize>) {
        let (state, _) = on_current(NAME)?;
        let function = state.function(function.addr() as u64)?;
        let sizes = function.host_kernel.parameters;
        let own = *sizes.get(index).ok_or(code::INVALID_VALUE)?;
        // Each parameter is aligned to its size.
        let align = |offset: usize, size: &usize| offset.next_multiple_of((*size).max(1));
        let before =
            sizes.iter().take(index).fold(0, |offset, size| align(offset, size).saturating_add(*size));
        offset.set(align(before, &own))?;
        if size.is_null() { Ok(()) } else { size.set(own) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Pointer<i32>,
        function: Handle,
        threads: i32,
        shared_bytes: usize,
    ) {
        let (state, _) = on_current(NAME)?;
        if !state.functions.contains_key(&(function.addr() as u64)) {
            return Err(code::INVALID_HANDLE);
        }
        let threads = usize::try_from(threads).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(code::INVALID_VALUE)?;
        // Per multiprocessor 2,048 threads, 32 blocks and 228 KiB of shared memory, like an H200.
        let by_shared = 233_472_usize.checked_div(shared_bytes).unwrap_or(32);
        let most = if threads > 1_024 { 0 } else { (2_048 / threads).min(32).min(by_shared) };
        blocks.set(i32::try_from(most).unwrap_or(32))
    }
}
