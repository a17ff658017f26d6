//! Functions that `cust` 0.3 (CUDA 11.4) does not declare. The running driver may lack each of them: the call then
//! returns a code that [`check`](crate::check) turns into [`DriverError::MissingFunction`](crate::DriverError).
//!
//! Signatures: CUDA driver API reference, 12.x and 13.x. Where a version changed a signature, the versioned name is used.

use std::os::raw::{c_uint, c_ulonglong, c_void};

use cust::sys::{CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUstream};

use super::table::driver_functions;

/// `CUmemLocation` of CUDA 12.2 and later: a location of memory.
///
/// `kind` is `CU_MEM_LOCATION_TYPE_*` as an integer: 1 device, 2 host, 3 host NUMA node, 4 the current host NUMA node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemLocation {
    /// Type of the location.
    pub kind: c_uint,
    /// Ordinal of the device or of the NUMA node; 0 for the host.
    pub id: i32,
}

/// `CUmemcpyAttributes` of CUDA 12.8 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemcpyAttributes {
    /// `CU_MEMCPY_SRC_ACCESS_ORDER_*`: 1 stream order, 2 during the call, 3 any.
    pub src_access_order: c_uint,
    /// Location of the source; ignored for device and pinned memory.
    pub src_location: MemLocation,
    /// Location of the destination; ignored for device and pinned memory.
    pub dst_location: MemLocation,
    /// `CU_MEMCPY_FLAG_*`: 1 prefers overlap with compute.
    pub flags: c_uint,
}

/// `CUgraphExecUpdateResultInfo` of CUDA 12.0 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphExecUpdateResultInfo {
    /// `CU_GRAPH_EXEC_UPDATE_*`: 0 on success.
    pub result: c_uint,
    /// The node that prevented the update, if any.
    pub error_node: CUgraphNode,
    /// The node that it depends on, if an edge prevented the update.
    pub error_from_node: CUgraphNode,
}

/// `CUlaunchConfig` of CUDA 11.8 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks of the grid, by dimension.
    pub grid: [c_uint; 3],
    /// Threads of a block, by dimension.
    pub block: [c_uint; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: c_uint,
    /// The stream.
    pub stream: CUstream,
    /// The attributes.
    pub attributes: *const LaunchAttribute,
    /// Number of attributes.
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute` of CUDA 11.8 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_*`: 6 is programmatic stream serialization.
    pub id: c_uint,
    /// Unused: a value is aligned to 8 bytes.
    pub padding: c_uint,
    /// `CUlaunchAttributeValue`: a number is in its first bytes.
    pub value: [c_ulonglong; 8],
}

driver_functions! {
    fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong);
    fn cuMemPrefetchAsync_v2(pointer: CUdeviceptr, count: usize, location: MemLocation, flags: c_uint, stream: CUstream);
    fn cuMemAdvise_v2(pointer: CUdeviceptr, count: usize, advice: c_uint, location: MemLocation);
    fn cuMemcpyBatchAsync(
        destinations: *mut CUdeviceptr, sources: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attributes: *mut MemcpyAttributes, attribute_indices: *mut usize, attribute_count: usize,
        failed_index: *mut usize, stream: CUstream,
    );
    fn cuMemcpyBatchAsync_v2(
        destinations: *mut CUdeviceptr, sources: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attributes: *mut MemcpyAttributes, attribute_indices: *mut usize, attribute_count: usize, stream: CUstream,
    );
    fn cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: c_uint, flags: c_uint);
    fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: c_uint, flags: c_uint);
    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, info: *mut GraphExecUpdateResultInfo);
    fn cuGetProcAddress_v2(
        symbol: *const std::os::raw::c_char, function: *mut *mut c_void, version: i32, flags: u64, status: *mut c_uint,
    );
}
