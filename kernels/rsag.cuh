/* payload_rsag, payload_rsag_phased and their halves: reduce-scatter and all-gather. */
#ifndef ROCE_RING_RSAG_CUH
#define ROCE_RING_RSAG_CUH

#include "one_shot.cuh"

/* Chunk p of the input goes to owner p; this rank reduces its own chunk. Returns false after a failed wait.
 * Input chunk p starts at element p * each and has at most `each` elements, `count` in all; staged at p * chunk bytes.
 */
template <typename T>
RR_FN bool rr_scatter_and_reduce(rr_ctx &c, uint64_t count, uint64_t each, uint64_t out_at, T *also) {
    const rr_op *op = c.op;
    uint64_t chunk = rr_round_up(each * sizeof(T), 16), send = rr_send_offset(c), recv = rr_recv_offset(c);
    const uint8_t *in = (const uint8_t *)op->in;
    if (chunk == each * sizeof(T)) {
        rr_copy(c, rr_region(c) + send, in, count * sizeof(T));
    } else {
        for (uint32_t p = 0; p < op->world; p++)
            rr_copy(c, rr_region(c) + send + p * chunk, in + p * each * sizeof(T), each * sizeof(T));
    }
    /* Padding travels with full chunks; only the last one that exists may be short. */
    uint64_t bytes = chunk == each * sizeof(T) ? count * sizeof(T) : op->world * chunk;
    rr_prepare(c, RR_OP_SCATTER, 0, rr_wave_of(op), rr_peers(c), send, recv + op->rank * op->layout.slot_bytes, bytes,
               chunk);
    rr_publish(c);
    rr_expect all = {rr_peers(c), 0, rr_chunk_bytes((uint32_t)bytes, (uint32_t)chunk, op->rank), 0};
    if (!rr_wait(c, all)) return false;
    uint64_t begin = op->rank * each, mine = begin >= count ? 0 : count - begin < each ? count - begin : each;
    /* The output of a reduce-scatter may lie anywhere in its input: there the staged copy is read. */
    const uint8_t *own = op->kind == RR_REDUCE_SCATTER ? rr_region(c) + send + op->rank * chunk : nullptr;
    rr_reduce_in_rank_order<T>(c, own, begin, rr_region(c) + recv, op->layout.slot_bytes, mine, out_at, also);
    return true;
}

template <typename T> RR_FN void rr_rsag(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint64_t each = rr_chunk_count(op->count, op->world, op->dtype), chunk = each * sizeof(T),
             bytes = op->count * sizeof(T);
    uint64_t recv = rr_recv_offset(c), result = rr_send_offset(c) + op->layout.slot_bytes;
    if (rr_scatter_and_reduce<T>(c, op->count, each, op->rank * each, (T *)(rr_region(c) + result))) {
        /* Results land behind the contributions: 2 * chunk fits a slot for every world >= 2. */
        rr_prepare(c, RR_OP_BROADCAST, 1, rr_wave_of(op), rr_peers(c), result,
                   recv + op->rank * op->layout.slot_bytes + chunk,
                   rr_chunk_bytes((uint32_t)bytes, (uint32_t)chunk, op->rank), 0);
        rr_publish(c);
        rr_expect all = {rr_peers(c), 1, bytes, chunk};
        if (rr_wait(c, all)) {
            for (uint32_t src = 0; src < op->world; src++) {
                uint64_t length = rr_chunk_bytes((uint32_t)bytes, (uint32_t)chunk, src);
                if (src != op->rank && length)
                    rr_copy(c, (uint8_t *)op->out + src * chunk,
                            rr_region(c) + recv + src * op->layout.slot_bytes + chunk, length,
                            (uint32_t)(src * chunk / 16));
            }
        }
    }
    rr_end(c);
}

/* out = sum over ranks of in[rank * count .. + count). */
template <typename T> RR_FN void rr_reduce_scatter(rr_ctx &c) {
    if (!rr_begin(c)) return;
    rr_scatter_and_reduce<T>(c, c.op->count * c.op->world, c.op->count, 0, (T *)0);
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
    rr_copy(c, rr_region(c) + send, (const void *)op->in, bytes);
    rr_prepare(c, RR_OP_BROADCAST, 0, rr_wave_of(op), rr_peers(c), send, recv + op->rank * op->layout.slot_bytes, bytes,
               0);
    rr_publish(c);
    bool ok = true;
    /* One round for all sources although their sizes differ: the paths used depend on the size, so poll source by
     * source. */
    if (c.block == 0) {
        for (uint32_t src = 0; src < op->world && ok; src++) {
            rr_expect one = {1u << src, 0, op->rows * op->width[src], 0};
            if (src != op->rank) ok = rr_poll_flags(c, one);
        }
    }
    if (rr_close_round(c, ok)) {
        /* Our own rows come from the input, unless the output lies over it. */
        bool apart = op->in + bytes <= op->out || op->out + op->rows * row <= op->in;
        uint64_t at = 0;
        uint32_t turn = 0;
        for (uint32_t src = 0; src < op->world; at += op->width[src++]) {
            const uint8_t *from = rr_region(c) + recv + src * op->layout.slot_bytes;
            if (src == op->rank) from = apart ? (const uint8_t *)op->in : rr_region(c) + send;
            rr_copy_rows(c, (uint8_t *)op->out + at, row, from, op->width[src], op->rows, turn);
            turn += (uint32_t)(op->width[src] * op->rows / 16);
        }
    }
    rr_end(c);
}

#endif
