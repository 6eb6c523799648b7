/* The machine under the collectives: threads, blocks, clock, loads and stores that others can see.
 *
 * Two machines. CUDA: a thread is a thread. CPU: the same source with a "grid" of pthreads, by default one block of one
 * thread; tests run many under ThreadSanitizer. Everything above this file is written once.
 *
 * Scopes: _sys = proxy, NIC and peers; _dev = other blocks of the same launch.
 */
#ifndef ROCE_RING_DEVICE_CUH
#define ROCE_RING_DEVICE_CUH

#include "op.h"

#ifdef __CUDACC__
#define RR_GPU 1
#define RR_FN __device__ __forceinline__
#else
#define RR_GPU 0
#define RR_FN static inline
#include <string.h>
#endif

struct rr_block_barrier; /* CPU only; cpu.cpp */

/* Where this thread stands, and how far this launch has come. Every thread counts rounds and commands alike. */
struct rr_ctx {
    const rr_op *op;
    uint32_t tid, threads, block, blocks;
    uint32_t rounds, commands;
    uint64_t seq;
    bool failed;
    struct rr_block_barrier *barrier;
};

RR_FN uint8_t *rr_region(const rr_ctx &c) { return (uint8_t *)c.op->region; }
RR_FN rr_device_state *rr_state_of(const rr_ctx &c) { return (rr_device_state *)c.op->state; }
RR_FN uint32_t rr_slot(const rr_ctx &c) { return (uint32_t)(c.seq % RR_SLOTS); }
RR_FN uint64_t rr_send_offset(const rr_ctx &c) { return c.op->layout.send + rr_slot(c) * 2 * c.op->layout.slot_bytes; }
RR_FN uint64_t rr_recv_offset(const rr_ctx &c) {
    return c.op->layout.recv + rr_slot(c) * c.op->world * c.op->layout.slot_bytes;
}

#if RR_GPU
/* ------------------------------------------------------------------ CUDA */
#define RR_PACK_BYTES 16
struct rr_pack {
    uint32_t w[4];
};

RR_FN uint64_t rr_load_acquire_sys(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
RR_FN uint64_t rr_load_relaxed_sys(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
RR_FN void rr_store_relaxed_sys(uint64_t *p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
RR_FN void rr_store_release_sys(uint64_t *p, uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
RR_FN uint64_t rr_load_acquire_dev(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
RR_FN void rr_store_release_dev(uint64_t *p, uint64_t v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* this block's writes -> whoever sees what the calling thread does next (proxy and NIC included). The block barrier
 * before it gathers the other threads' writes; the fence makes them cumulative. */
RR_FN void rr_fence_block_to_system() { __threadfence_system(); }
RR_FN uint32_t rr_add_dev(uint32_t *p, uint32_t by) { return atomicAdd(p, by); }

RR_FN void rr_block_sync(const rr_ctx &) { __syncthreads(); }
RR_FN bool rr_block_any(const rr_ctx &, bool mine) { return __syncthreads_or(mine); }
RR_FN uint64_t rr_clock_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
RR_FN void rr_relax(const rr_ctx &, uint32_t, uint32_t) {}
RR_FN void rr_relaxed(const rr_ctx &, uint32_t, uint32_t) {}
/* A GPU cannot make a system call; the proxy's naps are short instead. */
RR_FN void rr_ring_doorbell(const rr_ctx &, uint64_t) {}

/* Peer data: never from a cache line that was filled before the flag was seen. */
RR_FN rr_pack rr_load_pack(const void *p) {
    rr_pack v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p)
                 : "memory");
    return v;
}
RR_FN void rr_store_pack(void *p, const rr_pack &v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}
#else
/* ------------------------------------------------------------------ CPU */
/* Sequentially consistent, not just acquire: the last look at a flag before sleeping for it (proxy/src/order.h). */
RR_FN uint64_t rr_load_acquire_sys(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
RR_FN uint64_t rr_load_relaxed_sys(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
RR_FN void rr_store_relaxed_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
/* Sequentially consistent, not just release: half of the nap handshake (proxy/src/order.h). */
RR_FN void rr_store_release_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
RR_FN uint64_t rr_load_acquire_dev(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
RR_FN void rr_store_release_dev(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
/* On a CPU the atomic that follows carries the order (rr_add_dev is acquire-release, publishing is a release). */
RR_FN void rr_fence_block_to_system() {}
RR_FN uint32_t rr_add_dev(uint32_t *p, uint32_t by) { return __atomic_fetch_add(p, by, __ATOMIC_ACQ_REL); }

extern "C" {
void rr_cpu_block_sync(struct rr_block_barrier *barrier);
bool rr_cpu_block_any(struct rr_block_barrier *barrier, bool mine);
uint64_t rr_cpu_clock_ns(void);
void rr_cpu_relax(const rr_op *op, uint32_t polls, uint32_t awaited);
void rr_cpu_relaxed(const rr_op *op, uint32_t awaited);
void rr_cpu_doorbell(uint32_t *napping);
}
RR_FN void rr_block_sync(const rr_ctx &c) {
    if (c.threads > 1) rr_cpu_block_sync(c.barrier);
}
RR_FN bool rr_block_any(const rr_ctx &c, bool mine) { return c.threads > 1 ? rr_cpu_block_any(c.barrier, mine) : mine; }
RR_FN uint64_t rr_clock_ns() { return rr_cpu_clock_ns(); }
/* After a look at a word that was not yet as wished. `awaited`: the peers that will change it, as a mask; 0 = other
 * threads of this launch. rr_relaxed: it is now. */
RR_FN void rr_relax(const rr_ctx &c, uint32_t polls, uint32_t awaited) { rr_cpu_relax(c.op, polls, awaited); }
RR_FN void rr_relaxed(const rr_ctx &c, uint32_t polls, uint32_t awaited) {
    if (polls > c.op->spins) rr_cpu_relaxed(c.op, awaited);
}
/* Command `index` was published: take a turn at the engine if this thread may, else wake the proxy if it naps. */
RR_FN void rr_ring_doorbell(const rr_ctx &c, uint64_t index) {
    rr_progress *progress = (rr_progress *)(rr_region(c) + c.op->layout.progress);
    if (c.op->lend) ((void (*)(void *))c.op->lend)((void *)c.op->proxy);
    if (__atomic_load_n(&progress->napping, __ATOMIC_SEQ_CST) && rr_load_relaxed_sys(&progress->consumed) <= index)
        rr_cpu_doorbell(&progress->napping);
}
#endif

/* All threads of the launch copy `bytes` together. */
RR_FN void rr_copy(const rr_ctx &c, void *to, const void *from, uint64_t bytes) {
    uint64_t me = (uint64_t)c.block * c.threads + c.tid, all = (uint64_t)c.blocks * c.threads;
#if RR_GPU
    uint64_t addresses = (uint64_t)to | (uint64_t)from;
    if (addresses % 16 == 0) {
        for (uint64_t i = me; i < bytes / 16; i += all)
            rr_store_pack((uint8_t *)to + i * 16, rr_load_pack((const uint8_t *)from + i * 16));
        uint64_t tail = bytes / 16 * 16;
        for (uint64_t i = tail + me; i < bytes; i += all) ((uint8_t *)to)[i] = ((const volatile uint8_t *)from)[i];
    } else if ((addresses | bytes) % 4 == 0) {
        for (uint64_t i = me; i < bytes / 4; i += all) ((uint32_t *)to)[i] = ((const volatile uint32_t *)from)[i];
    } else if ((addresses | bytes) % 2 == 0) {
        for (uint64_t i = me; i < bytes / 2; i += all) ((uint16_t *)to)[i] = ((const volatile uint16_t *)from)[i];
    } else {
        for (uint64_t i = me; i < bytes; i += all) ((uint8_t *)to)[i] = ((const volatile uint8_t *)from)[i];
    }
#else
    uint64_t slice = rr_round_up((bytes + all - 1) / all, 64), begin = me * slice;
    if (begin < bytes)
        memcpy((uint8_t *)to + begin, (const uint8_t *)from + begin, bytes - begin < slice ? bytes - begin : slice);
#endif
}

#endif
