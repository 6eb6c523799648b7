/* full, full_phased: everybody sends its whole payload to everybody and adds all of them up, rank 0 first. */
#ifndef ROCE_RING_ONE_SHOT_CUH
#define ROCE_RING_ONE_SHOT_CUH

#include "direct.cuh"
#include "norm.cuh"

#if RR_GPU
/* How many sources' packs a thread asks for before it adds the first: a load over the bus takes longer than all else
 * here together. */
#define RR_SOURCES_AT_ONCE 4
#endif

/* Where the contributions of all ranks lie: rank p's in this rank's receive slot, `stride` bytes after rank p - 1's; or
 * at the same offset of every owner's own memory. */
struct rr_sources {
    uint64_t at; /* offset */
    uint64_t stride;
    bool at_owner;
};

RR_FN const uint8_t *rr_source(const rr_ctx &c, const rr_sources &s, uint32_t src) {
    return s.at_owner ? rr_data_of(c, src) + s.at : rr_data(c) + s.at + src * s.stride;
}

/* Where a rounded sum goes beside the output: memory of this rank, or the same offset of some peers' memory. */
template <typename T> struct rr_also {
    T *here;
    uint32_t peers;
    uint64_t dst;
};

/* Adds one tile of every rank in rank order. This rank's is `own`, or the input's at `own_at`: reading the staged copy
 * back over the bus would cost as much as another peer. */
template <typename T, uint32_t N>
RR_FN void rr_sum_tile(rr_ctx &c, float (&sum)[N], const uint8_t *own, uint64_t own_at, const rr_sources &from,
                       uint64_t begin, uint32_t n) {
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
                pack[k] = rr_load_pack(rr_source(c, from, first + k) + begin * sizeof(T));
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
        const T *theirs = (const T *)rr_source(c, from, src) + begin;
        if (src == 0 && src == c.op->rank)
            for (uint32_t i = 0; i < n; i++) sum[i] = mine[i];
        else if (src == 0)
            rr_load_tile(sum, theirs, n);
        else if (src == c.op->rank)
            for (uint32_t i = 0; i < n; i++) sum[i] += mine[i];
        else
            rr_add_tile(sum, theirs, n);
    }
#endif
}

/* `own`: see rr_sum_tile. */
template <typename T>
RR_FN void rr_reduce_in_rank_order(rr_ctx &c, const uint8_t *own, uint64_t own_at, const rr_sources &from,
                                   uint64_t count, uint64_t out_at, const rr_also<T> &also) {
    RR_FOR_TILES(c, T, count, begin, n) {
        float sum[rr_tile_of<T>::count];
        rr_sum_tile<T>(c, sum, own, own_at, from, begin, (uint32_t)n);
        rr_store_out<T>(c, out_at + begin, sum, (uint32_t)n);
        if (also.here) rr_store_tile(also.here + begin, sum, (uint32_t)n);
        for (uint32_t p = 0; also.peers >> p; p++)
            if (also.peers & 1u << p) rr_store_tile((T *)(rr_data_of(c, p) + also.dst) + begin, sum, (uint32_t)n);
    }
}

/* The same bytes of this rank to everybody, and the publish. `staged`: where a proxy takes them from. */
RR_FN bool rr_broadcast(rr_ctx &c, const rr_message &m, uint64_t staged) {
    if (c.direct) return rr_send(c, m, rr_wave_of(c.op));
    if (m.bytes) rr_copy(c, rr_data(c) + staged, m.from, m.bytes);
    rr_prepare(c, RR_OP_BROADCAST, m.phase, rr_wave_of(c.op), rr_peers(c), staged, m.dst, m.bytes, 0);
    rr_publish(c);
    return true;
}

/* In parts, so that this rank's sending, the proxies' and the reading of what came run at the same time: part p has
 * flags and a command of its own, in phase p. */
template <typename T> RR_FN void rr_full(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint32_t pieces = op->pieces > 1 ? op->pieces : 1;
    uint64_t bytes = op->count * sizeof(T), each = rr_round_up((bytes + pieces - 1) / pieces, 16);
    uint64_t send = rr_send_offset(c), recv = rr_recv_offset(c), mine = recv + op->rank * op->layout.slot_bytes;
    bool ok = true;
    for (uint32_t p = 0; p < pieces && ok; p++) {
        uint64_t at = p * each, part = rr_chunk_bytes((uint32_t)bytes, (uint32_t)each, p);
        rr_message m = {(const uint8_t *)op->in + at, part, 0, mine + at, p};
        ok = rr_broadcast(c, m, send + at);
    }
    for (uint32_t p = 0; p < pieces && ok; p++) {
        uint64_t at = p * each, part = rr_chunk_bytes((uint32_t)bytes, (uint32_t)each, p);
        rr_expect all = {rr_peers(c), p, part, 0};
        ok = rr_wait(c, all);
        rr_sources from = {recv + at, op->layout.slot_bytes, false};
        rr_also<T> nowhere = {nullptr, 0, 0};
        if (ok) rr_reduce_in_rank_order<T>(c, nullptr, at / sizeof(T), from, part / sizeof(T), at / sizeof(T), nowhere);
    }
    rr_norm<T>(c);
    rr_end(c);
}

#endif
