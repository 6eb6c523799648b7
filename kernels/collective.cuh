/* The steps every collective is made of: begin, publish, wait, end.
 *
 * Two slots. Operation k uses slot k % 2 of the send area, the receive area and the flags. They are enough because
 *   - every message of an operation is waited for by its receiver within that operation (empty chunks send their flag
 * too), and
 *   - every rank's last wait of operation k depends, directly or through others, on every other rank having begun k.
 * A rank that begins k + 2 has finished k + 1, so every rank had begun k + 1, so every rank had finished k: nobody
 * still reads slot k % 2, and everything this rank sent from it has landed. tests/native picks the fastest rank always
 * and checks it.
 *
 * Blocks. Block 0 alone speaks to the outside: it publishes once all others have arrived, polls flags, one thread per
 * (source, path), and hands the result to the other blocks through device memory, because polling the host from every
 * block costs more than the hand-over (12.7 against 23-48 us at 4 KiB on an H200). All blocks must be resident at once.
 *
 * Failure. A wait that fails sets the fault word and every block leaves through the same barriers as on the good path;
 * the output is undefined. Later launches of the session leave before they touch anything: what the failed operation
 * sent may still be on the wire to ranks that did not fail, and staging over it would give them wrong bytes under a
 * good flag.
 */
#ifndef ROCE_RING_COLLECTIVE_CUH
#define ROCE_RING_COLLECTIVE_CUH

#include "numbers.cuh"
#include "profile.cuh"

RR_FN uint32_t rr_my_position(const rr_ctx &c) {
    uint32_t at = 0;
    while (c.op->order[at] != c.op->rank) at++;
    return at;
}
/* Rank that is `distance` places after ours on the ring. */
RR_FN uint32_t rr_ring_peer(const rr_ctx &c, uint32_t distance) {
    return c.op->order[(rr_my_position(c) + distance) % c.op->world];
}

RR_FN uint32_t rr_peers(const rr_ctx &c) { return ((1u << c.op->world) - 1) & ~(1u << c.op->rank); }

RR_FN bool rr_aborted(const rr_ctx &c) {
    return rr_load_relaxed_sys((const uint64_t *)(rr_region(c) + c.op->layout.abort)) != 0;
}

RR_FN rr_kernel_line *rr_kernel_line_of(const rr_ctx &c) {
    return (rr_kernel_line *)(rr_region(c) + c.op->layout.kernel);
}

/* False if there is nothing to do but return: an operation of this session has failed. */
RR_FN bool rr_begin(rr_ctx &c) {
    const rr_device_state *state = rr_state_of(c); /* stable until every block has arrived once */
    c.seq = state->seq + 1;
    c.first_command = state->commands;
    c.first_round = state->rounds;
    c.first_publish = state->publishes;
    c.publishes = c.rounds = c.commands = c.committed = c.prefetched = 0;
    c.notes = 0;
    /* Where parts follow each other, block 0 has its hands full with telling when each is there. */
    bool only_talks = c.op->pieces > 1 && c.blocks > 1;
    c.workers = only_talks ? c.blocks - 1 : c.blocks;
    c.worker = !only_talks ? c.block : c.block ? c.block - 1 : c.workers;
    c.failed = rr_load_relaxed_sys(&state->failed) != 0;
    if (!c.failed && c.block == 0 && c.tid == rr_lead(c))
        rr_store_relaxed_sys(&rr_kernel_line_of(c)->seq_started, c.seq);
    rr_mark_begin(c);
    return !c.failed;
}

/* Called by all threads; one writes the command, all but its commit word. rr_publish() commits it. */
RR_FN void rr_prepare(rr_ctx &c, uint32_t op, uint32_t phase, uint32_t wave, uint32_t peers, uint64_t src, uint64_t dst,
                      uint64_t bytes, uint64_t chunk) {
    uint64_t index = c.first_command + c.commands++;
    if (c.block != 0 || c.tid != rr_lead(c)) return;
    uint64_t *to = (uint64_t *)((rr_command *)(rr_region(c) + c.op->layout.commands) + index % RR_COMMANDS);
    /* The words of rr_command after `commit`, in the layout that layout.h asserts. */
    rr_store_relaxed_sys(to + 1, c.seq);
    rr_store_relaxed_sys(to + 2, src);
    rr_store_relaxed_sys(to + 3, dst);
    rr_store_relaxed_sys(to + 4, bytes | chunk << 32);
    rr_store_relaxed_sys(to + 5, (uint64_t)peers | (uint64_t)op << 16 | (uint64_t)phase << 24 | (uint64_t)wave << 32 |
                                     (uint64_t)c.op->mode << 40 | (uint64_t)c.op->digest << 48);
}

/* Tells the proxy why this kernel gave up. The first fault of a session stands; one block, so a plain look is enough.
 */
RR_FN void rr_fault(const rr_ctx &c, uint32_t reason, uint32_t src, uint32_t phase, uint32_t path) {
    uint64_t *fault = &rr_kernel_line_of(c)->fault;
    if (!rr_load_relaxed_sys(fault)) rr_store_release_sys(fault, RR_ABORT_WORD(reason, src, phase, path, c.seq));
}

/* After a look that found nothing: asks for the next piece of what the caller wants in the cache afterwards. Only a
 * hint: whoever has nothing to wait for asks for nothing. `waiter`: the peers in block 0, then the other blocks, share
 * out the pieces. */
RR_FN void rr_prefetch(rr_ctx &c, uint32_t waiter) {
    if (!c.op->prefetches) return;
    uint64_t piece = (uint64_t)c.prefetched++ * (c.op->world - 2 + c.blocks) + waiter;
    for (uint32_t i = 0; i < c.op->prefetches; i++) {
        uint64_t bytes = c.op->prefetch_bytes[i], pieces = (bytes + RR_PREFETCH_PIECE - 1) / RR_PREFETCH_PIECE;
        if (piece < pieces) {
            uint64_t at = piece * RR_PREFETCH_PIECE, left = bytes - at;
            rr_prefetch_piece(c.op->prefetch[i] + at,
                              left < RR_PREFETCH_PIECE ? (uint32_t)left : (uint32_t)RR_PREFETCH_PIECE);
            return;
        }
        piece -= pieces;
    }
    c.prefetched--; /* that was all */
}

/* Polls one flag until it says `seq`. Bounded by time, by the abort word and by its own sanity. */
RR_FN bool rr_poll_flag(rr_ctx &c, uint32_t src, uint32_t phase, uint32_t path) {
    const rr_layout &l = c.op->layout;
    const uint64_t *flag =
        (const uint64_t *)(rr_data(c) + rr_flag_offset(l.flags, (uint32_t)l.phases, src, rr_slot(c), phase, path));
    uint64_t *shown =
        (uint64_t *)(rr_region(c) + l.waits) + ((uint64_t)src * RR_MAX_PATHS + path) * (sizeof(rr_wait_line) / 8);
    uint64_t expected = RR_FLAG_VALUE(c.seq, c.op->digest), began = 0;
    bool showing = false, ok = true;
    uint32_t polls = 1;
    for (;; polls++) {
        uint64_t seen = rr_load_acquire_sys(flag);
        if (seen == expected) break;
        int64_t ahead = RR_FLAG_AHEAD(seen, c.seq);
        if (ahead >= 0) { /* ahead: two slots make it impossible. Level: the same operation number, another operation */
            /* Who is wrong cannot be told from here, so the word names both: `path` holds the rank that noticed. */
            rr_fault(c, ahead ? RR_ERR_PROTOCOL : RR_ERR_OP_MISMATCH, src, phase, c.op->rank);
            ok = false;
            break;
        }
        if (polls % 64 == 0) {
            if (rr_aborted(c)) {
                ok = false;
                break;
            }
            uint64_t now = rr_clock_ns();
            if (!began) began = now;
            if (!showing && now - began > c.op->report_ns) {
                rr_store_relaxed_sys(shown, RR_WAIT_WORD(phase, c.seq));
                showing = true;
            }
            if (now - began > c.op->deadline_ns) {
                rr_fault(c, RR_ERR_PEER_TIMEOUT, src, phase, path);
                ok = false;
                break;
            }
        }
        if (path == 0) rr_prefetch(c, src - (src > c.op->rank));
        rr_relax(c, polls, 1u << src);
    }
    rr_relaxed(c, polls, 1u << src);
    if (showing) rr_store_relaxed_sys(shown, 0);
    return ok;
}

struct rr_expect {
    uint32_t peers; /* mask of sources */
    uint32_t phase;
    uint64_t bytes; /* from each source, or of the whole payload if chunk is set */
    uint64_t chunk; /* nonzero: source p sends its chunk p of `bytes` */
};

RR_FN uint32_t rr_expected_paths(const rr_ctx &c, const rr_expect &e, uint32_t src) {
    if (c.direct) return 1;
    uint32_t bytes = e.chunk ? rr_chunk_bytes((uint32_t)e.bytes, (uint32_t)e.chunk, src) : (uint32_t)e.bytes;
    return rr_paths_used(bytes, c.op->paths[src], c.op->stripe_min_bytes);
}

/* Block 0's threads share out (source, path) pairs. */
RR_FN bool rr_poll_flags(rr_ctx &c, const rr_expect &e) {
    bool ok = true;
    for (uint32_t i = c.tid; i < c.op->world * RR_MAX_PATHS && ok; i += c.threads) {
        uint32_t src = i / RR_MAX_PATHS, path = i % RR_MAX_PATHS;
        if ((e.peers & 1u << src) && path < rr_expected_paths(c, e, src)) ok = rr_poll_flag(c, src, e.phase, path);
    }
    return ok;
}

/* Every other block waits for block 0's word. Bounded by what bounds block 0, and a second on top. */
RR_FN bool rr_poll_ready(rr_ctx &c) {
    const uint64_t *ready = &rr_state_of(c)->ready;
    uint64_t began = 0;
    for (uint32_t polls = 1;; polls++) {
        uint64_t seen = rr_load_acquire_dev(ready);
        if (seen >> 1 >= c.first_round + c.rounds + 1) return !(seen & 1);
        if (polls % 1024 == 0) {
            uint64_t now = rr_clock_ns();
            if (!began) began = now;
            if (rr_load_relaxed_sys(&rr_state_of(c)->failed)) return false;
            /* a round polls at most every peer, one after the other */
            if (now - began > c.op->world * c.op->deadline_ns + 1000000000ull) return false;
        }
        rr_prefetch(c, c.op->world - 2 + c.block);
        rr_relax(c, polls, 0);
    }
}

/* Block 0, the threads from rr_lead() on: have all other blocks of this launch arrived for this publish? */
RR_FN bool rr_poll_arrived(const rr_ctx &c) {
    uint64_t wanted = c.first_publish + c.publishes + 1, began = 0;
    for (uint32_t block = 1 + c.tid - rr_lead(c); block < c.blocks; block += rr_lookouts()) {
        const uint64_t *arrived = &rr_state_of(c)->arrived[block];
        for (uint32_t polls = 1; rr_load_acquire_dev(arrived) < wanted; polls++) {
            if (polls % 1024 == 0) {
                uint64_t now = rr_clock_ns();
                if (!began) began = now;
                if (rr_load_relaxed_sys(&rr_state_of(c)->failed)) return false; /* the session is being closed */
                if (now - began > c.op->deadline_ns) {
                    rr_fault(c, RR_ERR_KERNEL_STUCK, c.op->rank, c.publishes, 0);
                    return false;
                }
            }
            rr_relax(c, polls, 0);
        }
    }
    return true;
}

/* Direct: the next publish tells these peers that the message of `phase` is in their memory. At most two a publish. */
RR_FN void rr_note(rr_ctx &c, uint32_t peers, uint32_t phase) { c.notes = c.notes << 32 | phase << 16 | peers; }

RR_FN void rr_raise_noted(const rr_ctx &c, uint32_t note) {
    const rr_layout &l = c.op->layout;
    uint64_t at = rr_flag_offset(l.flags, (uint32_t)l.phases, c.op->rank, rr_slot(c), note >> 16, 0);
    for (uint32_t p = 0; p < c.op->world; p++)
        if (note & 1u << p) rr_raise(c, p, (uint64_t *)(rr_data_of(c, p) + at), RR_FLAG_VALUE(c.seq, c.op->digest));
}

/* Once all threads of all blocks have written this payload: commits the commands prepared for it, or raises the flags
 * noted for it. Observers: every thread (block barrier, fence) -> block 0 (`arrived`) -> proxy and NIC (fence, commit),
 * or the peers' block 0 (fence, flag). No look at the abort word:
 * that is a round trip over the bus, and the proxy swallows commands of an aborted session. */
RR_FN void rr_publish(rr_ctx &c) {
    uint32_t lead = rr_lead(c);
    rr_block_sync(c);
    rr_mark_work(c);
    if (c.block != 0) {
        if (c.tid == lead) {
            rr_fence_block_to_system();
            rr_store_fenced_sys(&rr_state_of(c)->arrived[c.block], c.first_publish + c.publishes + 1);
        }
    } else if (c.tid >= lead && c.tid < lead + rr_lookouts()) {
        bool arrived = rr_lookouts_agree(rr_poll_arrived(c));
        if (c.tid == lead && arrived) {
            if (!c.direct || c.notes) rr_fence_block_to_system();
            for (uint64_t notes = c.notes; notes; notes >>= 32) rr_raise_noted(c, (uint32_t)notes);
            for (uint64_t i = c.first_command + c.committed; i < c.first_command + c.commands; i++) {
                rr_store_fenced_sys(
                    (uint64_t *)((rr_command *)(rr_region(c) + c.op->layout.commands) + i % RR_COMMANDS), i + 1);
                rr_ring_doorbell(c, i);
            }
        }
        c.failed |= !arrived;
    }
    c.committed = c.commands;
    c.notes = 0;
    c.publishes++;
    rr_mark(c, command);
}

/* Ends a round: block 0 knows whether its polls went well (`ok`, per thread), the others learn it.
 * Observers: peer's NIC or proxy -> block 0 (acquire on the flag) -> every thread (block barrier, `ready`). */
RR_FN bool rr_close_round(rr_ctx &c, bool ok) {
    if (c.block == 0) {
        ok = !rr_block_any(c, !ok || c.failed);
        if (c.tid == rr_lead(c) && c.blocks > 1)
            rr_store_release_dev(&rr_state_of(c)->ready, (c.first_round + c.rounds + 1) << 1 | (ok ? 0 : 1));
    } else {
        if (c.tid == 0) ok = rr_poll_ready(c);
        ok = !rr_block_any(c, !ok);
    }
    rr_mark(c, wait);
    c.rounds++;
    c.failed = !ok;
    return ok;
}

/* Waits for one or two sets of messages and closes the round. After true, every thread may read what was waited for. */
RR_FN bool rr_wait2(rr_ctx &c, const rr_expect &a, const rr_expect &b) {
    bool ok = true;
    rr_mark_work(c);
    if (c.block == 0) {
        ok = rr_poll_flags(c, a);
        if (ok && b.peers) ok = rr_poll_flags(c, b);
    }
    return rr_close_round(c, ok);
}

RR_FN bool rr_wait(rr_ctx &c, const rr_expect &a) {
    rr_expect none = {0, 0, 0, 0};
    return rr_wait2(c, a, none);
}

/* What any block has written so far, every block may read after true. Nothing leaves this device by it, so there is no
 * fence for the outside. Observers: every thread (block barrier) -> block 0 (`arrived`) -> every thread (`ready`). */
RR_FN bool rr_blocks_meet(rr_ctx &c) {
    bool ok = true;
    rr_block_sync(c);
    if (c.block == 0) {
        if (c.tid >= rr_lead(c) && c.tid < rr_lead(c) + rr_lookouts()) ok = rr_lookouts_agree(rr_poll_arrived(c));
    } else if (c.tid == rr_lead(c)) {
        rr_store_release_dev(&rr_state_of(c)->arrived[c.block], c.first_publish + c.publishes + 1);
    }
    c.publishes++;
    return rr_close_round(c, ok);
}

/* Every block passes here exactly once. Block 0 leaves the state as the next launch expects it: by now every block has
 * read it, and the next launch begins when all blocks have ended. */
RR_FN void rr_end(rr_ctx &c) {
    rr_block_sync(c);
    rr_mark_work(c);
    rr_mark_end(c);
    if (c.tid != rr_lead(c)) return;
    rr_device_state *state = rr_state_of(c);
    if (c.failed) rr_store_relaxed_sys(&state->failed, 1);
    if (c.block != 0) return;
    if (!c.failed) {
        state->seq = c.seq;
        state->commands = c.first_command + c.commands;
        state->rounds = c.first_round + c.rounds;
        state->publishes = c.first_publish + c.publishes;
    }
    rr_store_relaxed_sys(&rr_kernel_line_of(c)->seq_done, c.seq);
}

/* Elements of the input, and of the output. */
template <typename T, uint32_t N> RR_FN void rr_load_in(const rr_ctx &c, uint64_t at, float (&v)[N], uint32_t n) {
    rr_load_from<T>((const uint8_t *)c.op->in + at * sizeof(T), v, n);
}
template <typename T, uint32_t N>
RR_FN void rr_store_out(const rr_ctx &c, uint64_t at, const float (&v)[N], uint32_t n) {
    rr_store_to<T>((uint8_t *)c.op->out + at * sizeof(T), v, n);
}

RR_FN uint32_t rr_wave_of(const rr_op *op) {
    bool phased = op->mode == RR_MODE_FULL_PHASED || op->mode == RR_MODE_PAYLOAD_RSAG_PHASED ||
                  op->mode == RR_MODE_BULK_PUSH_PHASED;
    return phased ? RR_WAVE_PHASED : op->wave;
}

#endif
