// transload_occupy(nanoseconds): keeps each block where it is until the device's global timer has gone on by `nanoseconds` since the
// block began. Calibration measures lists next to it: with as many blocks as fit, other kernels wait for its end, and a multiprocessor that
// another kernel holds makes it as much longer, as with a multiplication of matrices. Accesses no memory. Ends after as many reads of the
// timer as there are nanoseconds, each of which takes several: also if the timer stands still.
//
// How occupy.ptx was made: written by hand after this source, and assembled once behind copy.ptx with ptxas 12.9 for sm_50 and sm_90 to
// check it; the driver compiles it when it is loaded. This file is what to read; it is not compiled. Change both together. The software driver runs a
// host kernel (Rust) (crates/cuda-sim/src/kernels.rs), whose virtual time is that long.

#include <cstdint>

static __device__ uint64_t timer() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void transload_occupy(uint64_t nanoseconds) {
    uint64_t start = timer();
    for (uint64_t left = nanoseconds; timer() - start < nanoseconds && --left != 0;) {
    }
}
