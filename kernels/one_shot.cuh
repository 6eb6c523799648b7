/* full, full_phased: everybody sends its whole payload to everybody and adds all of them up, rank 0 first. */
#ifndef ROCE_RING_ONE_SHOT_CUH
#define ROCE_RING_ONE_SHOT_CUH

#include "collective.cuh"

/* Adds N buffers in rank order: `own` for this rank, recv + src * stride for the others. */
template <typename T>
RR_FN void rr_reduce_in_rank_order(rr_ctx &c, const uint8_t *own, const uint8_t *recv, uint64_t stride, uint64_t count,
                                   uint64_t out_at, T *also) {
    RR_FOR_TILES(c, T, count, begin, n) {
        float sum[rr_tile_of<T>::count];
        for (uint32_t src = 0; src < c.op->world; src++) {
            const T *from = (const T *)(src == c.op->rank ? own : recv + src * stride) + begin;
            if (src == 0)
                rr_load_tile(sum, from, (uint32_t)n);
            else
                rr_add_tile(sum, from, (uint32_t)n);
        }
        rr_store_out<T>(c, out_at + begin, sum, (uint32_t)n);
        if (also) rr_store_tile(also + begin, sum, (uint32_t)n);
    }
}

template <typename T> RR_FN void rr_full(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint64_t bytes = op->count * sizeof(T), send = rr_send_offset(c), recv = rr_recv_offset(c);
    rr_copy(c, rr_region(c) + send, (const void *)op->in, bytes);
    rr_publish(c, RR_OP_BROADCAST, 0, rr_wave_of(op), rr_peers(c), send, recv + op->rank * op->layout.slot_bytes, bytes,
               0);
    rr_expect all = {rr_peers(c), 0, bytes, 0};
    if (rr_wait(c, all))
        rr_reduce_in_rank_order<T>(c, rr_region(c) + send, rr_region(c) + recv, op->layout.slot_bytes, op->count, 0,
                                   (T *)0);
    rr_end(c);
}

#endif
