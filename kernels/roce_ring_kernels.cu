/* GPU entry points: one per collective and dtype, so that each gets the registers it needs and no more.
 * Built by NVRTC (through CuPy) or nvcc. The op travels by value; nothing is read from the host at replay.
 */
#include "run.cuh"

#define RR_THREADS 512 /* upper bound of a block; launch with a multiple of 32 */

static __device__ __forceinline__ rr_ctx rr_ctx_of(const rr_op *op) {
    rr_ctx c;
    c.op = op;
    c.tid = threadIdx.x;
    c.threads = blockDim.x;
    c.block = blockIdx.x;
    c.blocks = gridDim.x;
    c.barrier = 0;
    return c;
}

#define RR_KERNEL(name, body)                                                                                          \
    extern "C" __global__ void __launch_bounds__(RR_THREADS, 1) name(const __grid_constant__ rr_op op) {               \
        rr_ctx c = rr_ctx_of(&op);                                                                                     \
        body(c);                                                                                                       \
    }

#define RR_KERNELS_OF(type, T)                                                                                         \
    RR_KERNEL(rr_full_##type, rr_full<T>)                                                                              \
    RR_KERNEL(rr_payload_rsag_##type, rr_rsag<T>)                                                                      \
    RR_KERNEL(rr_reduce_scatter_##type, rr_reduce_scatter<T>)                                                          \
    RR_KERNEL(rr_lanes_##type, rr_lanes<T>)                                                                            \
    RR_KERNEL(rr_pull_##type, rr_pull<T>)

RR_KERNELS_OF(float32, rr_f32)
RR_KERNELS_OF(float16, rr_f16)
RR_KERNELS_OF(bfloat16, rr_bf16)
RR_KERNEL(rr_all_gather_bytes, rr_all_gather)
