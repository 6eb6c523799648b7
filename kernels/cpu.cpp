// The kernels, built for one CPU instruction set (RR_CPU_ISA). The same source as the GPU's; see cpu_run.cpp for the
// executor.
#include "cpu.h"
#include "run.cuh"

#define RR_JOIN2(a, b) a##b
#define RR_JOIN(a, b) RR_JOIN2(a, b)

template <typename T> static void run(rr_ctx &c) {
    switch (c.op->kind) {
    case RR_ALL_GATHER:
        rr_all_gather(c);
        break;
    case RR_REDUCE_SCATTER:
        rr_reduce_scatter<T>(c);
        break;
    default:
        if (c.op->mode == RR_MODE_FULL || c.op->mode == RR_MODE_FULL_PHASED)
            rr_full<T>(c);
        else if (c.op->mode == RR_MODE_PULL || c.op->mode == RR_MODE_BULK_PULL)
            rr_pull<T>(c);
        else if (c.op->mode == RR_MODE_RING || c.op->mode == RR_MODE_RING_BIDIR || c.op->mode == RR_MODE_HALVING)
            rr_lanes<T>(c);
        else
            rr_rsag<T>(c);
    }
}

extern "C" bool RR_JOIN(rr_cpu_thread_, RR_CPU_ISA)(const rr_op *op, rr_cpu_place place) {
    rr_ctx c = {};
    c.op = op, c.barrier = place.barrier;
    c.direct = op->data[op->rank] != 0;
    c.tid = place.tid, c.threads = place.threads, c.block = place.block, c.blocks = place.blocks;
    if (op->dtype == RR_FLOAT16)
        run<rr_f16>(c);
    else if (op->dtype == RR_BFLOAT16)
        run<rr_bf16>(c);
    else
        run<rr_f32>(c);
    return !c.failed;
}
