// transload_cast(dst, src, elements, from, to): casts between floating-point element types, by way of float.
//
// How cast.ptx was made: as copy.ptx (see copy.cu), by hand after this source. It has no header of its own: the driver is
// given all texts as one module, with the header of copy.ptx. Change source and text together.
//
// Types: 0 is float, 1 is half, 2 is bfloat16, whose conversions newer devices have as instructions; here they are made of
// integers. The bits of every result are those of FloatType::cast (crates/core/src/submit/cast.rs), which says what becomes of
// what is not a number: the device's own conversions from and to half would lose its sign and payload.
//
// Promises: any number of elements from 1 on (indices have 64 bits), any grid and block of one dimension. Both addresses are
// aligned for their elements, and the ranges do not overlap. No byte outside the two ranges is touched.

#include <cstdint>
#include <cuda_fp16.h>

static __device__ uint32_t load(const uint8_t *src, uint64_t i, uint32_t from) {
    if (from == 0) {
        return ((const uint32_t *)src)[i];
    }
    uint32_t bits = ((const uint16_t *)src)[i];
    if (from == 2) {
        return bits << 16;
    }
    uint32_t abs = bits & 0x7fff;
    bool nan = abs > 0x7c00;
    return nan ? (bits & 0x8000) << 16 | 0x7fc00000 | abs << 13 : __float_as_uint(__half2float(__ushort_as_half(bits)));
}

static __device__ void store(uint8_t *dst, uint64_t i, uint32_t to, uint32_t bits) {
    if (to == 0) {
        ((uint32_t *)dst)[i] = bits;
        return;
    }
    uint32_t upper = bits >> 16;
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    uint32_t narrow;
    if (to == 2) {
        narrow = nan ? upper | 0x40 : (bits + 0x7fff + (upper & 1)) >> 16;
    } else {
        narrow = nan ? (upper & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff)
                     : __half_as_ushort(__float2half_rn(__uint_as_float(bits)));
    }
    ((uint16_t *)dst)[i] = narrow;
}

extern "C" __global__ void transload_cast(uint8_t *dst, const uint8_t *src, uint64_t elements, uint32_t from, uint32_t to) {
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
        store(dst, i, to, load(src, i, from));
    }
}
