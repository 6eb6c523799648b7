/* pull, bulk_pull: peers load from the owner's send slot once its flag is up. Direct only.
 *
 * When may an owner stage into that slot again? Not before every peer has read it, and no message says so: the two-slot
 * proof does. Slot k % 2 is staged next in operation k + 2. A rank that begins k + 2 has finished k + 1, so it has seen
 * a flag that depends on every rank having begun k + 1; a rank begins k + 1 when its launch of k has ended, with all
 * its loads done. The chain (end of the peer's k, its flags of k + 1, our wait in k + 1, our staging in k + 2) orders
 * the peer's loads before our stores. It holds for whatever mode k + 1 runs in.
 *
 * Within an operation nothing is staged twice: contributions and results have places of their own.
 */
#ifndef ROCE_RING_PULL_CUH
#define ROCE_RING_PULL_CUH

#include "rsag.cuh"

/* Tells everybody that something is ready in this rank's send slot, and waits until everybody has said so. */
RR_FN bool rr_all_ready(rr_ctx &c, uint32_t phase) {
    rr_note(c, rr_peers(c), phase);
    rr_publish(c);
    rr_expect all = {rr_peers(c), phase, 0, 0};
    return rr_wait(c, all);
}

template <typename T> RR_FN void rr_pull(rr_ctx &c) {
    const rr_op *op = c.op;
    if (!rr_begin(c)) return;
    uint64_t send = rr_send_offset(c), results = send + op->layout.slot_bytes;
    rr_copy(c, rr_data(c) + send, (const void *)op->in, op->count * sizeof(T));
    if (op->mode == RR_MODE_PULL) {
        rr_sources staged = {send, 0, true};
        rr_also<T> nowhere = {nullptr, 0, 0};
        if (rr_all_ready(c, 0)) rr_reduce_in_rank_order<T>(c, nullptr, 0, staged, op->count, 0, nowhere);
    } else if (rr_all_ready(c, 0)) {
        rr_part p = rr_part_of<T>(op, 1, 0);
        uint64_t first = op->rank * p.each;
        rr_sources staged = {send + op->rank * p.chunk, 0, true};
        rr_also<T> result = {(T *)(rr_data(c) + results), 0, 0};
        rr_reduce_in_rank_order<T>(c, nullptr, first, staged, rr_part_chunk_count(p, op->rank), first, result);
        if (rr_all_ready(c, 1)) {
            uint32_t turn = 0;
            for (uint32_t d = 1; d < op->world; d++) {
                uint32_t src = rr_ring_peer(c, d);
                uint64_t length = rr_part_chunk_count(p, src) * sizeof(T);
                if (length) rr_copy(c, (T *)op->out + src * p.each, rr_data_of(c, src) + results, length, turn);
                turn += (uint32_t)(length / 16);
            }
        }
    }
    rr_norm<T>(c);
    rr_end(c);
}

#endif
