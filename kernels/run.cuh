/* From an rr_op to the collective it asks for. */
#ifndef ROCE_RING_RUN_CUH
#define ROCE_RING_RUN_CUH

#include "lanes.cuh"
#include "pull.cuh"

/* Ring modes and halving, by what a partial sum travels as. */
template <typename T, typename P> RR_FN void rr_lanes_by_mode(rr_ctx &c) {
    if (c.op->mode == RR_MODE_HALVING)
        rr_halving_run<T, P>(c);
    else
        rr_ring_run<T, P>(c, c.op->mode == RR_MODE_RING_BIDIR ? 2 : 1);
}

template <typename T> RR_FN void rr_lanes(rr_ctx &c) {
    if (sizeof(T) == sizeof(rr_f32) || c.op->fp32_partials)
        rr_lanes_by_mode<T, rr_f32>(c);
    else
        rr_lanes_by_mode<T, T>(c);
}

/* ---- host side: does this operation fit what the session has? ---- */

/* Returns 0, or a sentence. Only facts that all ranks share, so that all of them refuse alike. */
#if !defined(__CUDA_ARCH__)
static inline const char *rr_op_refusal(const rr_op *op) {
    uint32_t world = op->world;
    uint64_t size = rr_dtype_bytes(op->dtype), slot = op->layout.slot_bytes;
    if (op->norm_row && op->kind != RR_ALL_REDUCE) return "only an all-reduce takes a norm";
    if (op->prefetches > RR_MAX_PREFETCH) return "more ranges to prefetch than an operation takes";
    if (world < 2 || world > RR_MAX_WORLD || op->rank >= world) return "world or rank is out of range";
    if (op->kind == RR_ALL_GATHER) {
        if (!op->rows) return "an all-gather needs at least one row";
        if (op->rows > slot) return "an all-gather has more rows than a slot has bytes";
        for (uint32_t p = 0; p < world; p++)
            if (op->width[p] > slot / op->rows) return "a rank's shard is larger than a slot";
        return 0;
    }
    if (op->dtype < RR_FLOAT32 || op->dtype > RR_BFLOAT16) return "unknown dtype";
    if (!op->count) return "the payload is empty";
    if (op->count > slot / size) return "the payload is larger than a slot";
    uint64_t each = rr_chunk_count(op->count, world, op->dtype);
    if (op->kind == RR_REDUCE_SCATTER)
        return world * rr_round_up(op->count * size, 16) <= slot
                   ? 0
                   : "the payload of all ranks together is larger than a slot";
    if (op->kind != RR_ALL_REDUCE) return "unknown kind of operation";
    if (op->pieces > 1 && op->mode != RR_MODE_FULL && op->mode != RR_MODE_FULL_PHASED)
        return "only the one-shot modes travel in pieces";
    if (op->norm_row && (op->mode == RR_MODE_RING || op->mode == RR_MODE_RING_BIDIR || op->mode == RR_MODE_HALVING))
        return "a norm needs a mode that adds raw contributions";
    if (op->norm_row && op->count % op->norm_row) return "a norm needs whole rows";
    if (op->mode >= RR_MODE_BULK_PUSH && !op->data[op->rank]) return "this mode needs the peers' memory: provider pcie";
    uint64_t partial = op->fp32_partials ? 4 : size,
             half = rr_chunk_count(rr_round_up((op->count + 1) / 2, 16 / size), world, op->dtype);
    uint64_t send = 2 * slot, recv = world * slot;
    switch (op->mode) {
    case RR_MODE_FULL:
    case RR_MODE_FULL_PHASED:
        return op->pieces <= op->layout.phases ? 0 : "more pieces than an operation has phases";
    case RR_MODE_PAYLOAD_RSAG:
    case RR_MODE_PAYLOAD_RSAG_PHASED:
    case RR_MODE_BULK_PUSH:
    case RR_MODE_BULK_PUSH_PHASED:
        each = rr_chunk_count((op->count + rr_parts_of(op) - 1) / rr_parts_of(op), world, op->dtype);
        return 2 * rr_parts_of(op) * each * size <= slot ? 0 : "two chunks are larger than a slot";
    case RR_MODE_PULL:
    case RR_MODE_BULK_PULL:
        return 0;
    case RR_MODE_RING:
        return (world - 1) * each * (partial + size) <= recv && each * ((world - 1) * partial + size) <= send
                   ? 0
                   : "partial sums do not fit";
    case RR_MODE_RING_BIDIR:
        return 2 * (world - 1) * half * (partial + size) <= recv && 2 * half * ((world - 1) * partial + size) <= send
                   ? 0
                   : "partial sums do not fit";
    case RR_MODE_HALVING:
        if (world & (world - 1)) return "halving needs a world that is a power of two";
        return 2 * half * ((world - 1) * partial + world * size) <= recv && 2 * half * world * partial <= send
                   ? 0
                   : "partial sums do not fit";
    default:
        return "unknown mode";
    }
}
#endif

#endif
