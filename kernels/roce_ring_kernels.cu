/* GPU entry points: one per collective and dtype, so that each gets the registers it needs and no more.
 * Built by NVRTC (through CuPy) or nvcc. The op travels by value; nothing is read from the host at replay.
 */
#include "run.cuh"

#define RR_THREADS 512 /* upper bound of a block; launch with a multiple of 32 */

static __device__ __forceinline__ rr_ctx rr_ctx_of(const rr_op *op, bool direct) {
    rr_ctx c;
    c.op = op;
    c.direct = direct;
    c.tid = threadIdx.x;
    c.threads = blockDim.x;
    c.block = blockIdx.x;
    c.blocks = gridDim.x;
    c.barrier = 0;
    return c;
}

#define RR_KERNEL(name, direct, body)                                                                                  \
    extern "C" __global__ void __launch_bounds__(RR_THREADS, 1) name(const __grid_constant__ rr_op op) {               \
        rr_ctx c = rr_ctx_of(&op, direct);                                                                             \
        body(c);                                                                                                       \
    }

/* With a proxy and without ("direct") are two sets, because a kernel that could do both would need the registers of
 * both. Whoever compiles for a session asks for one of them; whoever only checks gets both. */
#ifndef RR_SETS
#define RR_SETS 3 /* 1: with a proxy; 2: direct */
#endif

#define RR_KERNELS_OF(type, T, how, direct)                                                                            \
    RR_KERNEL(rr_full_##how##type, direct, rr_full<T>)                                                                 \
    RR_KERNEL(rr_payload_rsag_##how##type, direct, rr_rsag<T>)                                                         \
    RR_KERNEL(rr_reduce_scatter_##how##type, direct, rr_reduce_scatter<T>)                                             \
    RR_KERNEL(rr_lanes_##how##type, direct, rr_lanes<T>)

#if RR_SETS & 1
RR_KERNELS_OF(float32, rr_f32, , false)
RR_KERNELS_OF(float16, rr_f16, , false)
RR_KERNELS_OF(bfloat16, rr_bf16, , false)
RR_KERNEL(rr_all_gather_bytes, false, rr_all_gather)
#endif

#if RR_SETS & 2
RR_KERNELS_OF(float32, rr_f32, direct_, true)
RR_KERNELS_OF(float16, rr_f16, direct_, true)
RR_KERNELS_OF(bfloat16, rr_bf16, direct_, true)
RR_KERNEL(rr_all_gather_direct_bytes, true, rr_all_gather)
RR_KERNEL(rr_pull_direct_float32, true, rr_pull<rr_f32>)
RR_KERNEL(rr_pull_direct_float16, true, rr_pull<rr_f16>)
RR_KERNEL(rr_pull_direct_bfloat16, true, rr_pull<rr_bf16>)
#endif
