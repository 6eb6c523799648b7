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

#ifndef RR_PROFILE
#define RR_PROFILE 0
#endif

struct rr_block_barrier; /* CPU only; cpu.cpp */

#if RR_PROFILE
struct rr_notes {
    rr_profile profile;
    uint64_t marked; /* when the part before was over */
};
#endif

/* Where this thread stands, and how far this launch has come. Every thread counts rounds and commands alike. */
struct rr_ctx {
    const rr_op *op;
    uint32_t tid, threads, block, blocks;
    uint32_t publishes, rounds, commands, committed;
    uint32_t prefetched;      /* pieces that this thread has asked for */
    uint32_t worker, workers; /* this block's share of copying and adding; worker == workers: none */
    bool direct;              /* blocks store into peers' memory themselves; on a GPU known when a kernel is compiled */
    uint64_t notes;           /* direct: flags that the next publish raises, rr_note() by rr_note() */
    uint64_t seq, first_command, first_round, first_publish; /* `first`: this operation's, in the session's count */
    bool failed;
    struct rr_block_barrier *barrier;
#if RR_PROFILE && !RR_GPU
    rr_notes notes_of_time;
#endif
};

RR_FN uint8_t *rr_region(const rr_ctx &c) { return (uint8_t *)c.op->region; }
/* Where this rank's flags and slots are. Everything else of a region stays in host memory, where the proxy looks. */
RR_FN uint8_t *rr_data(const rr_ctx &c) { return (uint8_t *)(c.direct ? c.op->data[c.op->rank] : c.op->region); }
RR_FN uint8_t *rr_data_of(const rr_ctx &c, uint32_t rank) { return (uint8_t *)c.op->data[rank]; }
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
/* Behind rr_fence_block_to_system: a release would wait for the bus a second time. */
RR_FN void rr_store_fenced_sys(uint64_t *p, uint64_t v) { rr_store_relaxed_sys(p, v); }
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
/* The thread that publishes: not in the warp that polls, where each would hold the other up. */
RR_FN uint32_t rr_lead(const rr_ctx &c) { return c.threads > 32 ? 32 : 0; }
/* Its warp looks for the other blocks' arrival together, and what each saw is then before what the lead does. */
RR_FN uint32_t rr_lookouts() { return 32; }
RR_FN bool rr_lookouts_agree(bool mine) { return __all_sync(0xffffffffu, mine); }

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
/* Raises a flag in a peer's memory, behind rr_fence_block_to_system. */
RR_FN void rr_raise(const rr_ctx &, uint32_t, uint64_t *flag, uint64_t value) { rr_store_fenced_sys(flag, value); }

/* What a waiting thread asks for at a time: one instruction where the hardware copies in bulk (it then takes what is
 * left of the piece to 16 bytes), else one a line. */
#if __CUDA_ARCH__ >= 900
#define RR_PREFETCH_PIECE 65536u
RR_FN void rr_prefetch_piece(uint64_t at, uint32_t bytes) {
    uint64_t begin = rr_round_up(at, 16), end = (at + bytes) & ~15ull;
    if (begin < end)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"((uint32_t)(end - begin))
                     : "memory");
}
#else
#define RR_PREFETCH_PIECE 2048u
RR_FN void rr_prefetch_piece(uint64_t at, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + i) : "memory");
}
#endif

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
RR_FN void rr_store_fenced_sys(uint64_t *p, uint64_t v) { rr_store_release_sys(p, v); }
RR_FN uint64_t rr_load_acquire_dev(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
RR_FN void rr_store_release_dev(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
/* On a CPU the store that follows carries the order: it is a release. */
RR_FN void rr_fence_block_to_system() {}
RR_FN uint32_t rr_lead(const rr_ctx &) { return 0; }
/* One thread looks for all blocks. */
RR_FN uint32_t rr_lookouts() { return 1; }
RR_FN bool rr_lookouts_agree(bool mine) { return mine; }

extern "C" {
void rr_cpu_block_sync(struct rr_block_barrier *barrier);
bool rr_cpu_block_any(struct rr_block_barrier *barrier, bool mine);
uint64_t rr_cpu_clock_ns(void);
void rr_cpu_relax(const rr_op *op, uint32_t polls, uint32_t awaited);
void rr_cpu_relaxed(const rr_op *op, uint32_t awaited);
void rr_cpu_doorbell(uint32_t *napping);
void rr_cpu_wake(uint32_t *sleeping, uint32_t rank);
}
#define RR_PREFETCH_PIECE 1024u
RR_FN void rr_prefetch_piece(uint64_t at, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch((const void *)(at + i));
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
/* Raises a flag in a peer's memory, and wakes the peer if it sleeps for it. On a CPU all of a region is mapped. */
RR_FN void rr_raise(const rr_ctx &c, uint32_t peer, uint64_t *flag, uint64_t value) {
    rr_store_fenced_sys(flag, value);
    rr_cpu_wake(&((rr_kernel_line *)(rr_data_of(c, peer) + c.op->layout.kernel))->sleeping, c.op->rank);
}
#endif

#if RR_GPU
/* What one thread keeps on its way at a time in rr_copy: a load over the bus takes about 1.5 us, however many there
 * are. */
#define RR_COPY_DEPTH 4

template <typename P> RR_FN P rr_load_any(const uint8_t *p) { return *(const volatile P *)p; }
template <> RR_FN rr_pack rr_load_any<rr_pack>(const uint8_t *p) { return rr_load_pack(p); }
template <typename P> RR_FN void rr_store_any(uint8_t *p, const P &v) { *(P *)p = v; }
template <> RR_FN void rr_store_any<rr_pack>(uint8_t *p, const rr_pack &v) { rr_store_pack(p, v); }

/* `units` of P, dense at `from`; at `to`, rows of `per` units lie `stride` bytes apart. */
template <typename P>
RR_FN void rr_copy_units(uint8_t *to, uint64_t stride, const uint8_t *from, uint32_t per, uint32_t units, uint32_t me,
                         uint32_t all) {
    for (uint32_t first = me; first < units; first += RR_COPY_DEPTH * all) {
        P v[RR_COPY_DEPTH];
#pragma unroll
        for (uint32_t k = 0; k < RR_COPY_DEPTH; k++) {
            uint32_t i = first + k * all;
            if (i < units) v[k] = rr_load_any<P>(from + (uint64_t)i * sizeof(P));
        }
#pragma unroll
        for (uint32_t k = 0; k < RR_COPY_DEPTH; k++) {
            uint32_t i = first + k * all;
            if (i < units) rr_store_any<P>(to + i / per * stride + (uint64_t)(i % per) * sizeof(P), v[k]);
        }
    }
}
#endif

/* All threads of the launch copy `rows` rows of `width` bytes, dense at `from` and `stride` bytes apart at `to`. A
 * region is below 4 GiB, so counts fit 32 bits. `turn`: packs that copies just before this one gave out, so that
 * several small ones go to different threads and run at the same time. */
RR_FN void rr_copy_rows(const rr_ctx &c, void *to, uint64_t stride, const void *from, uint64_t width, uint64_t rows,
                        uint32_t turn) {
    uint32_t me = c.worker * c.threads + c.tid, all = c.workers * c.threads;
    if (c.worker == c.workers) return;
#if RR_GPU
    me = (me + all - turn % all) % all;
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    uint64_t addresses = (uint64_t)to | (uint64_t)from;
    if (rows == 1) {
        uint32_t bytes = (uint32_t)width, tail = bytes / 16 * 16;
        if (addresses % 16 == 0) {
            rr_copy_units<rr_pack>(out, 0, in, bytes / 16 + 1, bytes / 16, me, all);
            if (me < bytes - tail) out[tail + me] = rr_load_any<uint8_t>(in + tail + me);
            return;
        }
        stride = 0;
    }
    uint64_t edges = addresses | width | stride;
    uint32_t bytes = (uint32_t)(width * rows), per = (uint32_t)width;
    if (edges % 16 == 0)
        rr_copy_units<rr_pack>(out, stride, in, per / 16, bytes / 16, me, all);
    else if (edges % 4 == 0)
        rr_copy_units<uint32_t>(out, stride, in, per / 4, bytes / 4, me, all);
    else if (edges % 2 == 0)
        rr_copy_units<uint16_t>(out, stride, in, per / 2, bytes / 2, me, all);
    else
        rr_copy_units<uint8_t>(out, stride, in, per, bytes, me, all);
#else
    (void)turn;
    uint64_t slice = rr_round_up((width + all - 1) / all, 64), begin = me * slice;
    for (uint64_t r = 0; r < rows && begin < width; r++)
        memcpy((uint8_t *)to + r * stride + begin, (const uint8_t *)from + r * width + begin,
               width - begin < slice ? width - begin : slice);
#endif
}

/* One row. */
RR_FN void rr_copy(const rr_ctx &c, void *to, const void *from, uint64_t bytes, uint32_t turn = 0) {
    rr_copy_rows(c, to, 0, from, bytes, 1, turn);
}

#endif
