/* One launch of a collective: what host code hands to a kernel, on GPU and CPU alike. C ABI; asserted like the layout.
 */
#ifndef ROCE_RING_OP_H
#define ROCE_RING_OP_H

#include <roce_ring/layout.h>

#define RR_MODE(name, value, raw, forwarding, power_of_two, partials, access, meaning) RR_MODE_##name = value,
enum rr_mode {
    RR_MODE_NONE = 0, /* all-gather and reduce-scatter */
#include "modes.def"
};
#undef RR_MODE

#define RR_ALL_REDUCE 1u
#define RR_ALL_GATHER 2u
#define RR_REDUCE_SCATTER 3u

#define RR_FLOAT32 1u
#define RR_FLOAT16 2u
#define RR_BFLOAT16 3u

/* Most blocks of a launch. */
#define RR_MAX_BLOCKS 64

/* Most ranges that one launch prefetches. */
#define RR_MAX_PREFETCH 8

/* Lives in device memory (CPU: process memory), one per session. Only kernels touch it after it was zeroed. Nothing is
 * ever reset: every count goes on from launch to launch, so that launches of any grid may follow each other and nobody
 * has to wait for the last block out. The first line changes only when block 0 is through, which is after every block
 * has read it. */
typedef struct rr_device_state {
    uint64_t seq;       /* last finished operation */
    uint64_t commands;  /* committed so far */
    uint64_t publishes; /* calls of rr_publish so far */
    uint64_t rounds;    /* closed so far */
    uint64_t failed;    /* an operation failed: later launches do nothing */
    uint8_t reserved0[88];
    /* By block, its own word: how many publishes its writing is ready for. Not one count for all: blocks do not wait
     * for each other between two publishes, and one that is ahead would stand in for one that is behind. */
    uint64_t arrived[RR_MAX_BLOCKS];
    uint64_t ready; /* rounds closed << 1 | failed: block 0 tells the others that a wait is over */
    uint8_t reserved1[120];
} rr_device_state;

/* What a profiling build (profile.cuh) notes of one operation: nanoseconds of block 0's lead thread. */
typedef struct rr_profile {
    uint64_t seq;
    uint64_t began_ns;
    uint64_t stage_ns;   /* the payload's way to where it is sent from, or to the peers */
    uint64_t command_ns; /* waiting for the other blocks, fence, commands or flags */
    uint64_t wait_ns;    /* for the peers' flags */
    uint64_t reduce_ns;  /* everything between and after waits: adding up, copying on and out */
    uint8_t reserved[16];
} rr_profile;

/* Operations kept: more than the 40 that a benchmark puts into a graph. */
#define RR_PROFILES 64

/* A profiling session's state. */
typedef struct rr_profiled_state {
    rr_device_state state;
    rr_profile profiles[RR_PROFILES]; /* operation seq at seq % RR_PROFILES */
} rr_profiled_state;

typedef struct rr_op {
    uint64_t in;     /* device address; any alignment the dtype allows */
    uint64_t out;    /* may equal `in` */
    uint64_t count;  /* all-reduce: elements. reduce-scatter: elements of one rank's result. all-gather: unused */
    uint64_t rows;   /* all-gather: rows; 1 for a gather along dim 0 */
    uint64_t region; /* address of this rank's region, in host memory */
    uint64_t state;  /* address of rr_device_state */
    uint64_t width[RR_MAX_WORLD]; /* all-gather: bytes of one row of each rank */
    rr_layout layout;
    uint64_t deadline_ns; /* of each wait */
    uint64_t report_ns;   /* a wait longer than this is shown to the proxy */
    uint32_t world;
    uint32_t rank;
    uint32_t kind; /* RR_ALL_REDUCE, ... */
    uint32_t mode; /* enum rr_mode */
    uint32_t wave; /* RR_WAVE_*: how the proxy separates destinations; phased modes set it themselves */
    uint32_t dtype;
    uint32_t fp32_partials; /* ring*, halving: carry partial sums of a 16-bit dtype as fp32 */
    uint32_t stripe_min_bytes;
    uint32_t spins;              /* CPU: looks at a flag before the thread sleeps for it */
    uint32_t digest;             /* of everything above that all ranks must share; rr_op_seal() sets it */
    uint8_t order[RR_MAX_WORLD]; /* rank at each ring position */
    uint8_t paths[RR_MAX_WORLD]; /* paths from each peer */
    /* CPU only, 0 on a GPU: a waiting thread lends itself to the proxy's engine (rr_proxy_lend), where threads
     * outnumber cores; and how long it sleeps if nobody wakes it (only the shm provider does). */
    uint64_t lend;
    uint64_t proxy;
    uint64_t sleep_ns;
    /* Each rank's data (flags and slots), as an address that offsets of the layout are added to, where this rank's
     * kernel reaches all of them: peers' memory over PCIe, or mapped shared memory. All 0: a proxy moves the bytes, and
     * the data are in `region`. */
    uint64_t data[RR_MAX_WORLD];
    uint32_t tag;    /* what else all ranks must share: the caller's hash of shape and dtype name */
    uint32_t pieces; /* full, full_phased: parts that travel one behind the other; 0 and 1 are the same */
    /* Residual add and RMSNorm behind an all-reduce (norm.cuh): elements of a row, 0 for none; device addresses of the
     * residual, which becomes the new one, and of the row of weights. */
    uint64_t norm_row;
    uint64_t norm_residual;
    uint64_t norm_weight;
    float norm_eps;
    uint32_t prefetches; /* how many of: */
    uint64_t
        prefetch[RR_MAX_PREFETCH]; /* device addresses, read into the cache while there is nothing to do but wait */
    uint64_t prefetch_bytes[RR_MAX_PREFETCH];
} rr_op;

/* clang-format off */
#define RR_OP_FIELDS(X) \
    X(rr_op, in, 0, 8) \
    X(rr_op, out, 8, 8) \
    X(rr_op, count, 16, 8) \
    X(rr_op, rows, 24, 8) \
    X(rr_op, region, 32, 8) \
    X(rr_op, state, 40, 8) \
    X(rr_op, width, 48, 128) \
    X(rr_op, layout, 176, 112) \
    X(rr_op, deadline_ns, 288, 8) \
    X(rr_op, report_ns, 296, 8) \
    X(rr_op, world, 304, 4) \
    X(rr_op, rank, 308, 4) \
    X(rr_op, kind, 312, 4) \
    X(rr_op, mode, 316, 4) \
    X(rr_op, wave, 320, 4) \
    X(rr_op, dtype, 324, 4) \
    X(rr_op, fp32_partials, 328, 4) \
    X(rr_op, stripe_min_bytes, 332, 4) \
    X(rr_op, spins, 336, 4) \
    X(rr_op, digest, 340, 4) \
    X(rr_op, order, 344, 16) \
    X(rr_op, paths, 360, 16) \
    X(rr_op, lend, 376, 8) \
    X(rr_op, proxy, 384, 8) \
    X(rr_op, sleep_ns, 392, 8) \
    X(rr_op, data, 400, 128) \
    X(rr_op, tag, 528, 4) \
    X(rr_op, pieces, 532, 4) \
    X(rr_op, norm_row, 536, 8) \
    X(rr_op, norm_residual, 544, 8) \
    X(rr_op, norm_weight, 552, 8) \
    X(rr_op, norm_eps, 560, 4) \
    X(rr_op, prefetches, 564, 4) \
    X(rr_op, prefetch, 568, 64) \
    X(rr_op, prefetch_bytes, 632, 64) \
    X(rr_device_state, seq, 0, 8) \
    X(rr_device_state, commands, 8, 8) \
    X(rr_device_state, publishes, 16, 8) \
    X(rr_device_state, rounds, 24, 8) \
    X(rr_device_state, failed, 32, 8) \
    X(rr_device_state, arrived, 128, 512) \
    X(rr_device_state, ready, 640, 8) \
    X(rr_profile, seq, 0, 8) \
    X(rr_profile, began_ns, 8, 8) \
    X(rr_profile, stage_ns, 16, 8) \
    X(rr_profile, command_ns, 24, 8) \
    X(rr_profile, wait_ns, 32, 8) \
    X(rr_profile, reduce_ns, 40, 8) \
    X(rr_profiled_state, state, 0, 768) \
    X(rr_profiled_state, profiles, 768, 4096)
#define RR_OP_STRUCTS(X) \
    X(rr_op, 696) \
    X(rr_device_state, 768) \
    X(rr_profile, 64) \
    X(rr_profiled_state, 4864)
/* clang-format on */
RR_OP_FIELDS(RR_ASSERT_FIELD)
RR_OP_STRUCTS(RR_ASSERT_STRUCT)

RR_SHARED_FN uint32_t rr_dtype_bytes(uint32_t dtype) { return dtype == RR_FLOAT32 ? 4u : 2u; }

/* Elements of one chunk when `count` elements are dealt to `world` owners: whole 16-byte packs, so that every chunk
 * starts on one. The last chunks may be short or empty; their flags still fly, because the slot proof counts on every
 * message. */
RR_SHARED_FN uint64_t rr_chunk_count(uint64_t count, uint32_t world, uint32_t dtype) {
    return rr_round_up((count + world - 1) / world, 16 / rr_dtype_bytes(dtype));
}

/* 16 bits over what all ranks must agree on, one mixing step a field (the multiplier is Knuth's, 2^64 / golden ratio).
 */
RR_SHARED_FN uint32_t rr_op_digest(const rr_op *op) {
    uint64_t h =
        ((uint64_t)op->kind << 24 | op->mode << 16 | op->dtype << 8 | op->wave << 4 | op->fp32_partials) + op->world;
    h = (h ^ op->count ^ (uint64_t)op->tag << 32) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 29 ^ op->rows ^ (uint64_t)op->pieces << 32) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 29 ^ op->norm_row) * 0x9e3779b97f4a7c15ull;
    if (op->kind == RR_ALL_GATHER)
        for (uint32_t p = 0; p < op->world; p++) h = (h ^ h >> 29 ^ op->width[p]) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(h >> 48);
}

#endif
