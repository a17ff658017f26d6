//! Exported symbols.

use std::any::type_name;

use transload_cuda_sys::ffi;

use super::*;

/// How an argument is passed: its size, and whether it is a pointer.
#[derive(Debug, PartialEq, Eq)]
struct Passed(usize, bool);

fn passed<T>() -> Passed {
    let name = type_name::<T>();
    let address = name.starts_with('*') || name.contains("Pointer<") || name.contains("Option<");
    Passed(size_of::<T>(), address)
}

macro_rules! arity {
    ($mine:ident, $theirs:ident, $($argument:ident),*) => {
        fn $mine<$($argument),*>(_: extern "C" fn($($argument),*) -> u32) -> Vec<Passed> {
            vec![$(passed::<$argument>()),*]
        }
        fn $theirs<$($argument),*>(_: unsafe fn($($argument),*) -> u32) -> Vec<Passed> {
            vec![$(passed::<$argument>()),*]
        }
    };
}
arity!(mine0, theirs0,);
arity!(mine1, theirs1, A);
arity!(mine2, theirs2, A, B);
arity!(mine3, theirs3, A, B, C);
arity!(mine4, theirs4, A, B, C, D);
arity!(mine5, theirs5, A, B, C, D, E);
arity!(mine6, theirs6, A, B, C, D, E, F);
arity!(mine8, theirs8, A, B, C, D, E, F, G, H);
arity!(mine9, theirs9, A, B, C, D, E, F, G, H, I);
arity!(mine11, theirs11, A, B, C, D, E, F, G, H, I, J, K);

macro_rules! agree {
    ($mine:ident, $theirs:ident: $($module:ident::$name:ident),* $(,)?) => { $(
        assert_eq!($mine($module::$name), $theirs(ffi::$name), stringify!($name));
    )* };
}

#[test]
fn symbols_have_the_signatures_of_cuda_sys() {
    agree!(mine0, theirs0: context::cuCtxSynchronize);
    agree!(mine1, theirs1: device::cuInit, device::cuDriverGetVersion, device::cuDeviceGetCount, device::cuDevicePrimaryCtxRelease_v2, context::cuCtxGetCurrent, context::cuCtxSetCurrent, context::cuCtxPushCurrent_v2, context::cuCtxPopCurrent_v2, context::cuCtxGetDevice, memory::cuMemFree_v2, host_memory::cuMemFreeHost, host_memory::cuMemHostUnregister, pool::cuMemPoolDestroy, stream::cuStreamDestroy_v2, stream::cuStreamQuery, stream::cuStreamSynchronize, graph::cuThreadExchangeStreamCaptureMode, graph::cuGraphDestroy, graph::cuGraphExecDestroy, event::cuEventDestroy_v2, event::cuEventQuery, event::cuEventSynchronize, module::cuModuleUnload);
    agree!(mine2, theirs2: device::cuGetErrorName, device::cuGetErrorString, device::cuDeviceGet, device::cuDeviceGetUuid, device::cuDeviceGetUuid_v2, device::cuDeviceTotalMem_v2, device::cuDevicePrimaryCtxRetain, context::cuCtxGetStreamPriorityRange, context::cuCtxEnablePeerAccess, context::cuMemGetInfo_v2, memory::cuMemAlloc_v2, host_memory::cuMemHostGetFlags, pool::cuMemFreeAsync, pool::cuMemPoolCreate, pool::cuMemPoolTrimTo, pool::cuDeviceGetDefaultMemPool, copy::cuMemcpy2DAsync_v2, stream::cuStreamCreate, stream::cuStreamGetPriority, stream::cuStreamGetFlags, stream::cuStreamGetCtx, graph::cuStreamIsCapturing, graph::cuStreamBeginCapture_v2, graph::cuStreamEndCapture, graph::cuGraphLaunch, event::cuEventCreate, event::cuEventRecord, module::cuModuleLoadData);
    agree!(mine3, theirs3: graph::cuGraphGetNodes, graph::cuGraphInstantiateWithFlags, graph::cuGraphExecUpdate_v2, device::cuDeviceGetName, device::cuDeviceGetPCIBusId, device::cuDeviceGetAttribute, device::cuDeviceCanAccessPeer, device::cuDevicePrimaryCtxGetState, host_memory::cuMemHostAlloc, host_memory::cuMemHostRegister_v2, host_memory::cuMemHostGetDevicePointer_v2, managed::cuMemAllocManaged, pool::cuMemAllocAsync, pool::cuMemPoolSetAttribute, pool::cuMemPoolGetAttribute, pool::cuMemPoolSetAccess, pointer::cuPointerGetAttribute, copy::cuMemcpyHtoD_v2, copy::cuMemcpyDtoH_v2, copy::cuMemcpyDtoD_v2, copy::cuMemcpy, fill::cuMemsetD8_v2, fill::cuMemsetD16_v2, fill::cuMemsetD32_v2, stream::cuStreamCreateWithPriority, stream::cuStreamWaitEvent, stream::cuLaunchHostFunc, event::cuEventElapsedTime, module::cuModuleGetFunction, module::cuFuncGetAttribute);
    agree!(mine4, theirs4: stream::cuStreamWaitValue32_v2, stream::cuStreamWriteValue32_v2, graph::cuGraphExecUpdate, managed::cuMemPrefetchAsync, managed::cuMemAdvise, managed::cuMemAdvise_v2, module::cuLaunchKernelEx, pool::cuMemAllocFromPoolAsync, copy::cuMemcpyHtoDAsync_v2, copy::cuMemcpyDtoHAsync_v2, copy::cuMemcpyDtoDAsync_v2, copy::cuMemcpyAsync, fill::cuMemsetD8Async, fill::cuMemsetD16Async, fill::cuMemsetD32Async, module::cuFuncGetParamInfo, module::cuOccupancyMaxActiveBlocksPerMultiprocessor);
    agree!(mine5, theirs5: managed::cuMemPrefetchAsync_v2, managed::cuMemRangeGetAttribute, module::cuModuleLoadDataEx);
    agree!(mine6, theirs6: copy::cuMemcpyPeerAsync);
    agree!(mine8, theirs8: batch::cuMemcpyBatchAsync_v2);
    agree!(mine9, theirs9: batch::cuMemcpyBatchAsync);
    agree!(mine11, theirs11: module::cuLaunchKernel);
}

#[test]
fn every_name_is_found_and_no_other() {
    assert!(names().all(|name| find(name).is_some()));
    assert!(find("cuGraphCreate").is_none() && find("").is_none());
}
