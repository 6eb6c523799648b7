/* full, full_phased: everybody sends its whole payload to everybody and adds all of them up, rank 0 first. */
#ifndef ROCE_RING_ONE_SHOT_CUH
#define ROCE_RING_ONE_SHOT_CUH

#include "collective.cuh"

#if RR_GPU
/* How many sources' packs a thread asks for before it adds the first: a load over the bus takes longer than all else
 * here together. */
#define RR_SOURCES_AT_ONCE 4
#endif

/* Adds one tile of every rank in rank order. This rank's is `own`, or the input's at `own_at`: reading the staged copy
 * back over the bus would cost as much as another peer. */
template <typename T, uint32_t N>
RR_FN void rr_sum_tile(rr_ctx &c, float (&sum)[N], const uint8_t *own, uint64_t own_at, const uint8_t *recv,
                       uint64_t stride, uint64_t begin, uint32_t n) {
    float mine[N];
    if (own)
        rr_load_tile(mine, (const T *)own + begin, n);
    else
        rr_load_in<T>(c, own_at + begin, mine, n);
#if RR_GPU
    for (uint32_t first = 0; first < c.op->world; first += RR_SOURCES_AT_ONCE) {
        rr_pack pack[RR_SOURCES_AT_ONCE] = {};
#pragma unroll
        for (uint32_t k = 0; k < RR_SOURCES_AT_ONCE; k++)
            if (first + k < c.op->world && first + k != c.op->rank)
                pack[k] = rr_load_pack(recv + (first + k) * stride + begin * sizeof(T));
#pragma unroll
        for (uint32_t k = 0; k < RR_SOURCES_AT_ONCE; k++) {
            if (first + k >= c.op->world) break;
            float v[N];
            rr_unpack<T>(v, pack[k]);
#pragma unroll
            for (uint32_t i = 0; i < N; i++) {
                if (first + k == c.op->rank) v[i] = mine[i];
                sum[i] = first + k ? sum[i] + v[i] : v[i];
            }
        }
    }
#else
    for (uint32_t src = 0; src < c.op->world; src++) {
        const T *from = (const T *)(recv + src * stride) + begin;
        if (src == 0 && src == c.op->rank)
            for (uint32_t i = 0; i < n; i++) sum[i] = mine[i];
        else if (src == 0)
            rr_load_tile(sum, from, n);
        else if (src == c.op->rank)
            for (uint32_t i = 0; i < n; i++) sum[i] += mine[i];
        else
            rr_add_tile(sum, from, n);
    }
#endif
}

/* `own`: see rr_sum_tile. `also`: where the rounded result goes beside the output. */
template <typename T>
RR_FN void rr_reduce_in_rank_order(rr_ctx &c, const uint8_t *own, uint64_t own_at, const uint8_t *recv, uint64_t stride,
                                   uint64_t count, uint64_t out_at, T *also) {
    RR_FOR_TILES(c, T, count, begin, n) {
        float sum[rr_tile_of<T>::count];
        rr_sum_tile<T>(c, sum, own, own_at, recv, stride, begin, (uint32_t)n);
        rr_store_out<T>(c, out_at + begin, sum, (uint32_t)n);
        if (also) rr_store_tile(also + begin, sum, (uint32_t)n);
    }
}

/* In parts, so that this rank's staging, the proxies' sending and the reading of what came run at the same time: part p
 * has flags and a command of its own, in phase p. */
template <typename T> RR_FN void rr_full(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint32_t pieces = op->pieces > 1 ? op->pieces : 1;
    uint64_t bytes = op->count * sizeof(T), each = rr_round_up((bytes + pieces - 1) / pieces, 16);
    uint64_t send = rr_send_offset(c), recv = rr_recv_offset(c), mine = recv + op->rank * op->layout.slot_bytes;
    for (uint32_t p = 0; p < pieces; p++) {
        uint64_t at = p * each, part = rr_chunk_bytes((uint32_t)bytes, (uint32_t)each, p);
        if (part) rr_copy(c, rr_region(c) + send + at, (const uint8_t *)op->in + at, part);
        rr_prepare(c, RR_OP_BROADCAST, p, rr_wave_of(op), rr_peers(c), send + at, mine + at, part, 0);
        rr_publish(c);
    }
    for (uint32_t p = 0; p < pieces; p++) {
        uint64_t at = p * each, part = rr_chunk_bytes((uint32_t)bytes, (uint32_t)each, p);
        rr_expect all = {rr_peers(c), p, part, 0};
        if (!rr_wait(c, all)) break;
        rr_reduce_in_rank_order<T>(c, nullptr, at / sizeof(T), rr_region(c) + recv + at, op->layout.slot_bytes,
                                   part / sizeof(T), at / sizeof(T), (T *)nullptr);
    }
    rr_end(c);
}

#endif
