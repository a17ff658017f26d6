// transload_saxpy(a, x, y, count): y[i] = a * x[i] + y[i] for f32. transload_add(x, y, sum, count): sum[i] = x[i] + y[i].
//
// How saxpy.ptx was made: written by hand after this source, in the oldest words that do (PTX ISA 6.0 of CUDA 9, sm_50), and
// assembled once with ptxas 12.9 for sm_50 and sm_90 to check it; the driver compiles it when it is loaded. This file is what
// to read; it is not compiled. Change both together. The software driver runs host kernels (Rust)
// (crates/cuda-sim/src/example_kernels.rs) instead of the PTX.
//
// Promises: any grid and block of one dimension. a * x is rounded before the sum, as the same words of C or Rust do on the
// host (no fused multiply-add), so that a test can compare for equality. x, y and sum are aligned to 4 bytes; no byte beyond
// `count` elements is touched.

#include <cstdint>

extern "C" __global__ void transload_saxpy(float a, const float *x, float *y, uint64_t count) {
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        y[i] = __fadd_rn(__fmul_rn(a, x[i]), y[i]);
    }
}

extern "C" __global__ void transload_add(const float *x, const float *y, float *sum, uint64_t count) {
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        sum[i] = __fadd_rn(x[i], y[i]);
    }
}
