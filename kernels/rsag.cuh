/* payload_rsag, bulk_push, both also phased, and their halves: reduce-scatter and all-gather. */
#ifndef ROCE_RING_RSAG_CUH
#define ROCE_RING_RSAG_CUH

#include "one_shot.cuh"

/* One part of a payload, cut in a chunk for every owner: chunk p begins at element `at + p * each`. */
struct rr_part {
    uint64_t at, count; /* elements */
    uint64_t each;      /* elements of a full chunk */
    uint64_t chunk;     /* bytes of its place: whole packs */
    uint64_t recv;      /* where it lands within the place that a source has in the receive slot */
    uint32_t phase;
};

/* bulk_push: how many parts follow each other. Each takes two phases of the operation; more than four only add rounds.
 */
RR_FN uint32_t rr_parts_of(const rr_op *op) {
    if (op->mode != RR_MODE_BULK_PUSH && op->mode != RR_MODE_BULK_PUSH_PHASED) return 1;
    return op->layout.phases < 8 ? (uint32_t)op->layout.phases / 2 : 4;
}

template <typename T> RR_FN rr_part rr_part_of(const rr_op *op, uint32_t parts, uint32_t i) {
    uint64_t each = rr_chunk_count((op->count + parts - 1) / parts, op->world, op->dtype), at = i * each * op->world;
    uint64_t left = at < op->count ? op->count - at : 0;
    rr_part p = {at,   left < each * op->world ? left : each * op->world, each, each * sizeof(T), i * each * sizeof(T),
                 2 * i};
    return p;
}

RR_FN uint64_t rr_part_chunk_count(const rr_part &p, uint32_t owner) {
    uint64_t begin = owner * p.each;
    return begin >= p.count ? 0 : p.count - begin < p.each ? p.count - begin : p.each;
}

/* Every owner gets its chunk of the input. */
template <typename T> RR_FN bool rr_scatter(rr_ctx &c, const rr_part &p) {
    const rr_op *op = c.op;
    uint64_t send = rr_send_offset(c), dst = rr_recv_offset(c) + op->rank * op->layout.slot_bytes + p.recv;
    const uint8_t *in = (const uint8_t *)op->in + p.at * sizeof(T);
    bool whole = p.chunk == p.each * sizeof(T);
    if (c.direct) {
        rr_message m = {in, p.count * sizeof(T), p.each * sizeof(T), dst, p.phase};
        return rr_send(c, m, rr_wave_of(op));
    }
    if (whole) {
        rr_copy(c, rr_data(c) + send, in, p.count * sizeof(T));
    } else {
        for (uint32_t owner = 0; owner < op->world; owner++)
            rr_copy(c, rr_data(c) + send + owner * p.chunk, in + owner * p.each * sizeof(T), p.each * sizeof(T));
    }
    /* Padding travels with full chunks; only the last one that exists may be short. */
    rr_prepare(c, RR_OP_SCATTER, p.phase, rr_wave_of(op), rr_peers(c), send, dst,
               whole ? p.count * sizeof(T) : op->world * p.chunk, p.chunk);
    rr_publish(c);
    return true;
}

/* Waits for all contributions to this rank's chunk and adds them up. False after a failed wait. */
template <typename T>
RR_FN bool rr_reduce_own(rr_ctx &c, const rr_part &p, const uint8_t *own, uint64_t out_at, const rr_also<T> &also) {
    const rr_op *op = c.op;
    uint64_t bytes = p.chunk == p.each * sizeof(T) ? p.count * sizeof(T) : op->world * p.chunk;
    rr_expect all = {rr_peers(c), p.phase, rr_chunk_bytes((uint32_t)bytes, (uint32_t)p.chunk, op->rank), 0};
    if (!rr_wait(c, all)) return false;
    rr_sources from = {rr_recv_offset(c) + p.recv, op->layout.slot_bytes, false};
    rr_reduce_in_rank_order<T>(c, own, p.at + op->rank * p.each, from, rr_part_chunk_count(p, op->rank), out_at, also);
    return true;
}

/* Adds up this rank's chunk and gives everybody the result. Results land behind all contributions: twice the chunks of
 * all parts fit a slot for every world >= 2. */
template <typename T> RR_FN bool rr_reduce_and_share(rr_ctx &c, const rr_part &p, uint64_t results) {
    const rr_op *op = c.op;
    uint64_t mine = rr_recv_offset(c) + op->rank * op->layout.slot_bytes + results + p.recv,
             staged = rr_send_offset(c) + op->layout.slot_bytes + p.recv, at = p.at + op->rank * p.each,
             bytes = rr_part_chunk_count(p, op->rank) * sizeof(T);
    bool phased = rr_wave_of(op) == RR_WAVE_PHASED, straight = c.direct && !phased;
    rr_also<T> also = {straight ? nullptr : (T *)(rr_data(c) + staged), straight ? rr_peers(c) : 0, mine};
    if (!rr_reduce_own<T>(c, p, nullptr, at, also)) return false;
    if (c.direct && phased) {
        rr_message m = {rr_data(c) + staged, bytes, 0, mine, p.phase + 1};
        return rr_meet(c) && rr_send(c, m, RR_WAVE_PHASED);
    }
    if (c.direct)
        rr_note(c, rr_peers(c), p.phase + 1);
    else
        rr_prepare(c, RR_OP_BROADCAST, p.phase + 1, rr_wave_of(op), rr_peers(c), staged, mine, bytes, 0);
    rr_publish(c);
    return true;
}

template <typename T> RR_FN bool rr_take_results(rr_ctx &c, const rr_part &p, uint64_t results) {
    const rr_op *op = c.op;
    rr_expect all = {rr_peers(c), p.phase + 1, p.count * sizeof(T), p.chunk};
    if (!rr_wait(c, all)) return false;
    for (uint32_t src = 0; src < op->world; src++) {
        uint64_t length = rr_part_chunk_count(p, src) * sizeof(T);
        if (src != op->rank && length)
            rr_copy(c, (uint8_t *)op->out + (p.at + src * p.each) * sizeof(T),
                    rr_data(c) + rr_recv_offset(c) + src * op->layout.slot_bytes + results + p.recv, length,
                    (uint32_t)(src * p.chunk / 16));
    }
    return true;
}

/* All parts leave before the first is waited for, so that adding one up, sharing its result and the arrival of the next
 * run at the same time. */
template <typename T> RR_FN void rr_rsag(rr_ctx &c) {
    if (!rr_begin(c)) return;
    uint32_t parts = rr_parts_of(c.op);
    uint64_t results = parts * rr_part_of<T>(c.op, parts, 0).chunk;
    bool ok = true;
    for (uint32_t i = 0; i < parts && ok; i++) ok = rr_scatter<T>(c, rr_part_of<T>(c.op, parts, i));
    for (uint32_t i = 0; i < parts && ok; i++) ok = rr_reduce_and_share<T>(c, rr_part_of<T>(c.op, parts, i), results);
    for (uint32_t i = 0; i < parts && ok; i++) ok = rr_take_results<T>(c, rr_part_of<T>(c.op, parts, i), results);
    rr_norm<T>(c);
    rr_end(c);
}

/* out = sum over ranks of in[rank * count .. + count). The output may lie anywhere in the input, so this rank's own
 * chunk is read from a copy. */
template <typename T> RR_FN void rr_reduce_scatter(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint64_t size = op->count * sizeof(T);
    rr_part p = {0, op->count * op->world, op->count, rr_round_up(size, 16), 0, 0};
    uint8_t *own = rr_data(c) + rr_send_offset(c) + op->rank * p.chunk;
    if (c.direct) rr_copy(c, own, (const uint8_t *)op->in + op->rank * size, size);
    rr_also<T> nowhere = {nullptr, 0, 0};
    if (rr_scatter<T>(c, p)) rr_reduce_own<T>(c, p, own, 0, nowhere);
    rr_end(c);
}

/* Rank p holds `rows` rows of width[p] bytes; the output holds the rows side by side. One row = gather along dim 0.
 * Bytes only: any dtype. */
RR_FN void rr_all_gather(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint64_t send = rr_send_offset(c), recv = rr_recv_offset(c), row = 0;
    for (uint32_t p = 0; p < op->world; p++) row += op->width[p];
    uint64_t bytes = op->rows * op->width[op->rank];
    /* Our own rows come from the input, unless the output lies over it. */
    bool apart = op->in + bytes <= op->out || op->out + op->rows * row <= op->in;
    if (c.direct && !apart) rr_copy(c, rr_data(c) + send, (const void *)op->in, bytes);
    rr_message m = {(const uint8_t *)op->in, bytes, 0, recv + op->rank * op->layout.slot_bytes, 0};
    bool ok = rr_broadcast(c, m, send);
    /* One round for all sources although their sizes differ: the paths used depend on the size, so poll source by
     * source. */
    rr_mark_work(c);
    if (c.block == 0) {
        for (uint32_t src = 0; src < op->world && ok; src++) {
            rr_expect one = {1u << src, 0, op->rows * op->width[src], 0};
            if (src != op->rank) ok = rr_poll_flags(c, one);
        }
    }
    if (rr_close_round(c, ok)) {
        uint64_t at = 0;
        uint32_t turn = 0;
        for (uint32_t src = 0; src < op->world; at += op->width[src++]) {
            const uint8_t *from = rr_data(c) + recv + src * op->layout.slot_bytes;
            if (src == op->rank) from = apart ? (const uint8_t *)op->in : rr_data(c) + send;
            rr_copy_rows(c, (uint8_t *)op->out + at, row, from, op->width[src], op->rows, turn);
            turn += (uint32_t)(op->width[src] * op->rows / 16);
        }
    }
    rr_end(c);
}

#endif
