/* What a rank does in a trace (stall.h): on a GPU any number of blocks, which begin an operation together and within it
 * meet the peers' block of the same number; on a CPU a block is a thread. */
#ifndef ROCE_RING_STALL_CUH
#define ROCE_RING_STALL_CUH

#include "device.cuh"
#include "stall.h"

/* What bytes arrive is not looked at: a trace is of times. */
struct rr_stall_ctx {
    const rr_stall *s;
    uint32_t tid, threads, block, blocks;
    uint64_t met;
};

#if RR_GPU
RR_FN bool rr_stall_any(bool mine) { return __syncthreads_or(mine); }
RR_FN void rr_stall_relax(uint32_t) {}
RR_FN rr_pack rr_stall_load(const void *p) { return rr_load_pack(p); }
RR_FN void rr_stall_store(void *p, const rr_pack &v) { rr_store_pack(p, v); }
/* Of the blocks of one launch. What a block did before arriving is seen by who sees it arrive; the last one's stamp
 * counts. */
RR_FN void rr_stall_arrive(uint64_t *p) {
    __threadfence();
    atomicAdd((unsigned long long *)p, 1ull);
}
RR_FN void rr_stall_stamp_last(uint64_t *p, uint64_t v) { atomicMax((unsigned long long *)p, (unsigned long long)v); }
#else
struct rr_pack {
    uint64_t w[2];
};
extern "C" void rr_stall_cpu_relax(uint32_t polls);
RR_FN bool rr_stall_any(bool mine) { return mine; }
RR_FN void rr_stall_relax(uint32_t polls) { rr_stall_cpu_relax(polls); }
/* Words by themselves: another rank may write them, or read them, at the same time, as in any of these patterns. */
RR_FN rr_pack rr_stall_load(const void *p) {
    const uint64_t *at = (const uint64_t *)p;
    return {{rr_load_relaxed_sys(at), rr_load_relaxed_sys(at + 1)}};
}
RR_FN void rr_stall_store(void *p, const rr_pack &v) {
    uint64_t *at = (uint64_t *)p;
    rr_store_relaxed_sys(at, v.w[0]), rr_store_relaxed_sys(at + 1, v.w[1]);
}
RR_FN void rr_stall_arrive(uint64_t *p) { __atomic_add_fetch(p, 1, __ATOMIC_RELEASE); }
RR_FN void rr_stall_stamp_last(uint64_t *p, uint64_t v) {
    uint64_t seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
#endif

RR_FN uint64_t *rr_stall_flag(const rr_stall_ctx &c, uint32_t at, uint32_t from) {
    return (uint64_t *)(c.s->flags[at] + ((uint64_t)c.block * c.s->world + from) * RR_STALL_LINE);
}

/* All ranks' blocks of this number. Thread p speaks to rank p and waits for it: its flag is raised behind everything
 * that this block has stored, and what that rank stored before its own is seen behind this. */
RR_FN bool rr_stall_meet(rr_stall_ctx &c) {
    const rr_stall *s = c.s;
    bool late = false;
    c.met++;
    rr_stall_any(false);
    for (uint32_t p = c.tid; p < s->world; p += c.threads) {
        if (p == s->rank) continue;
        rr_fence_block_to_system();
        rr_store_release_sys(rr_stall_flag(c, p, s->rank), c.met);
    }
    uint64_t began = rr_clock_ns();
    for (uint32_t p = c.tid; p < s->world && !late; p += c.threads) {
        if (p == s->rank) continue;
        const uint64_t *flag = rr_stall_flag(c, s->rank, p);
        for (uint32_t polls = 0; rr_load_acquire_sys(flag) < c.met && !late; polls++) {
            rr_stall_relax(polls);
            late = rr_clock_ns() - began > s->limit_ns;
        }
        if (late) rr_store_relaxed_sys((uint64_t *)s->lost, 1 + p);
    }
    return !rr_stall_any(late);
}

/* The address of this step's bytes at one peer. */
RR_FN uint8_t *rr_stall_at(const rr_stall *s, const rr_stall_step &step, uint32_t peer) {
    switch (step.kind) {
    case RR_STALL_READ:
        return (uint8_t *)s->data[peer] + peer * s->slot_bytes;
    case RR_STALL_WRITE:
        return (uint8_t *)s->data[peer] + s->rank * s->slot_bytes;
    case RR_STALL_TAKE:
        return (uint8_t *)s->data[s->rank] + peer * s->slot_bytes;
    default:
        return (uint8_t *)s->host;
    }
}

RR_FN void rr_stall_move(rr_stall_ctx &c, const rr_stall_step &step) {
    const rr_stall *s = c.s;
    bool writes = step.kind == RR_STALL_WRITE || step.kind == RR_STALL_HOST_WRITE;
    uint32_t peers = step.kind >= RR_STALL_HOST_READ ? 1u << s->rank : step.peers;
    rr_pack v = {};
    v.w[0] = (uint32_t)c.met;
    for (uint32_t i = c.block * c.threads + c.tid; i < step.bytes / 16; i += c.blocks * c.threads) {
        /* The rank after this one first: in a pattern of all to all no two begin with the same. */
        for (uint32_t d = 1; d <= s->world; d++) {
            uint32_t peer = (s->rank + d) % s->world;
            if (!(peers & 1u << peer)) continue;
            uint8_t *at = rr_stall_at(s, step, peer) + (uint64_t)i * 16;
            if (writes)
                rr_stall_store(at, v);
            else
                rr_stall_load(at); /* no compiler may leave it out */
        }
    }
    if (writes) rr_fence_block_to_system(); /* the operation ends when what it wrote is there */
}

/* Blocks meet their peers' by themselves, so without this one would soon be hundreds of operations ahead of another.
 * grid[0]: how many have come here, behind all that they did; block 0 looks. grid[1]: the operation that may begin,
 * when block 0 has met all ranks; the others look. Block 0 answers in any case, so only it needs the bound. */
RR_FN bool rr_stall_gather(const rr_stall_ctx &c, uint32_t op) {
    uint64_t *arrived = (uint64_t *)c.s->grid, began = rr_clock_ns();
    bool late = false;
    rr_stall_any(false);
    if (!c.tid && c.block) rr_stall_arrive(arrived);
    if (!c.tid && !c.block)
        for (uint32_t polls = 0; !late && rr_load_acquire_dev(arrived) < (uint64_t)(c.blocks - 1) * (op + 1); polls++) {
            rr_stall_relax(polls);
            late = rr_clock_ns() - began > c.s->limit_ns;
        }
    return !rr_stall_any(late);
}
#define RR_STALL_OVER ~0ull
RR_FN bool rr_stall_release(const rr_stall_ctx &c, uint32_t op, bool met) {
    uint64_t *gate = (uint64_t *)c.s->grid + 1, seen = op + 1;
    if (c.blocks == 1) return met;
    if (!c.tid && !c.block) rr_store_release_dev(gate, met ? op + 1 : RR_STALL_OVER);
    if (!c.tid && c.block)
        for (uint32_t polls = 0; (seen = rr_load_acquire_dev(gate)) <= op; polls++) rr_stall_relax(polls);
    return !rr_stall_any(!met || seen == RR_STALL_OVER);
}

RR_FN bool rr_stall_run(rr_stall_ctx &c) {
    const rr_stall *s = c.s;
    c.met = s->met;
    for (uint32_t op = 0; op < s->ops; op++) {
        uint64_t *stamp = (uint64_t *)s->stamps + (uint64_t)op * RR_STALL_STAMPS;
        bool first = !c.block && !c.tid;
        bool met = rr_stall_gather(c, op);
        if (first) stamp[0] = rr_clock_ns();
        if (c.block)
            c.met++; /* block 0 meets for all */
        else
            met = met && rr_stall_meet(c);
        if (!rr_stall_release(c, op, met)) return false;
        if (first) stamp[1] = rr_clock_ns();
        for (uint32_t i = 0; i < s->steps; i++) {
            rr_stall_move(c, s->step[i]);
            if (s->step[i].meet && !rr_stall_meet(c)) return false;
        }
        rr_stall_any(false);
        if (!c.tid) rr_stall_stamp_last(stamp + 2, rr_clock_ns());
    }
    return true;
}

#if RR_GPU
extern "C" __global__ void __launch_bounds__(512, 1) rr_stall_kernel(const rr_stall *s) {
    rr_stall_ctx c = {s, threadIdx.x, blockDim.x, blockIdx.x, gridDim.x, 0};
    rr_stall_run(c);
}
#endif

#endif
