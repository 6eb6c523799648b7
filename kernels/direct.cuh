/* Messages without a proxy: this rank's blocks store into the peers' memory, and block 0 raises the flags.
 *
 * What a proxy does with a command, in the same places: payload into the peer's receive slot, then the flag behind it.
 * So the two-slot proof of collective.cuh holds word for word: stores of operation k + 2 are made by a rank that has
 * begun it. Only two things differ. What is sent comes straight from where it is, not from a send slot, wherever no
 * other block has to finish it first. And "one destination at a time" is kept by waiting, between two destinations, for
 * the message that comes in the same phase: in phase p every rank writes to p + 1 places after it and reads what the
 * rank as far before it wrote, so nobody gets two streams at once.
 */
#ifndef ROCE_RING_DIRECT_CUH
#define ROCE_RING_DIRECT_CUH

#include "collective.cuh"

/* Direct: the blocks meet; a proxy needs no such thing. */
RR_FN bool rr_meet(rr_ctx &c) { return !c.direct || rr_blocks_meet(c); }

/* One range of this rank's slots to one peer. Direct: after rr_meet(). */
RR_FN void rr_put(rr_ctx &c, uint32_t phase, uint32_t peer, uint64_t src, uint64_t dst, uint64_t bytes) {
    if (!c.direct) {
        rr_prepare(c, RR_OP_PUT, phase, RR_WAVE_ALL, 1u << peer, src, dst, bytes, 0);
        return;
    }
    rr_copy(c, rr_data_of(c, peer) + dst, rr_data(c) + src, bytes);
    rr_note(c, 1u << peer, phase);
}

/* A message to every peer, from any address: all of `bytes`, or to rank p its chunk p. At `dst` of each peer. */
struct rr_message {
    const uint8_t *from;
    uint64_t bytes;
    uint64_t chunk; /* 0: everybody gets everything */
    uint64_t dst;
    uint32_t phase;
};

#if RR_GPU
/* Loads once, stores to every peer, the next ring position first. */
RR_FN void rr_spread(rr_ctx &c, const rr_message &m) {
    uint32_t units = (uint32_t)(m.bytes / 16), me = c.worker * c.threads + c.tid, all = c.workers * c.threads;
    if (c.worker == c.workers) return;
    for (uint32_t first = me; first < units; first += RR_COPY_DEPTH * all) {
        rr_pack v[RR_COPY_DEPTH];
#pragma unroll
        for (uint32_t k = 0; k < RR_COPY_DEPTH; k++)
            if (first + k * all < units) v[k] = rr_load_pack(m.from + (uint64_t)(first + k * all) * 16);
        for (uint32_t d = 1; d < c.op->world; d++) {
            uint8_t *to = rr_data_of(c, rr_ring_peer(c, d)) + m.dst;
#pragma unroll
            for (uint32_t k = 0; k < RR_COPY_DEPTH; k++)
                if (first + k * all < units) rr_store_pack(to + (uint64_t)(first + k * all) * 16, v[k]);
        }
    }
    for (uint64_t i = units * 16ull + me; i < m.bytes; i += all)
        for (uint32_t p = 0; p < c.op->world; p++)
            if (p != c.op->rank) rr_data_of(c, p)[m.dst + i] = m.from[i];
}
#endif

/* Direct: sends and publishes. False after a failed wait. */
RR_FN bool rr_send(rr_ctx &c, const rr_message &m, uint32_t wave) {
    bool phased = wave == RR_WAVE_PHASED, spread = false;
#if RR_GPU
    spread = !phased && !m.chunk && (uint64_t)m.from % 16 == 0;
    if (spread) rr_spread(c, m);
#endif
    uint32_t turn = 0; /* see rr_copy_rows */
    for (uint32_t d = 1; d < c.op->world && !spread; d++) {
        uint32_t peer = rr_ring_peer(c, d);
        uint64_t bytes = m.chunk ? rr_chunk_bytes((uint32_t)m.bytes, (uint32_t)m.chunk, peer) : m.bytes;
        if (bytes) rr_copy(c, rr_data_of(c, peer) + m.dst, m.from + peer * m.chunk, bytes, turn);
        turn += (uint32_t)(bytes / 16);
        if (!phased) continue;
        rr_note(c, 1u << peer, m.phase);
        rr_publish(c);
        rr_expect same_phase = {1u << rr_ring_peer(c, c.op->world - d), m.phase, 0, 0};
        if (d + 1 < c.op->world && !rr_wait(c, same_phase)) return false; /* the caller waits for the last */
    }
    if (phased) return true;
    rr_note(c, rr_peers(c), m.phase);
    rr_publish(c);
    return true;
}

#endif
