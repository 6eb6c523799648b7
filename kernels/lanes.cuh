/* ring, ring_bidir, halving: partial sums travel. The payload is cut in one or two lanes that run at the same time over
 * different partners; a lane is cut in one chunk per rank, and each chunk has one owner, so all ranks end with the same
 * bits.
 *
 * P is what a partial sum travels as: T (rounds at every hop) or fp32. With unit roundoff u of T, a T-valued partial
 * adds at most one u * |partial| per hop: N - 1 hops of a ring, log2 N of halving; the error of the fp32 additions is
 * far below.
 */
#ifndef ROCE_RING_LANES_CUH
#define ROCE_RING_LANES_CUH

#include "direct.cuh"

struct rr_lane {
    uint64_t at;       /* first element of the payload */
    uint64_t count;    /* elements */
    uint64_t each;     /* elements of a full chunk */
    uint64_t send;     /* region offset of this lane's send buffers */
    uint64_t recv;     /* and of its receive buffers, the same on every rank */
    uint32_t phase;    /* first phase */
    uint32_t place;    /* ring: our place along the lane's direction. halving: our coordinate */
    uint32_t to, from; /* ring: ranks */
};

/* Elements of chunks [first, first + chunks) that exist. */
RR_FN uint64_t rr_lane_count(const rr_lane &l, uint32_t first, uint32_t chunks) {
    uint64_t begin = first * l.each, end = (first + chunks) * l.each;
    if (begin > l.count) begin = l.count;
    if (end > l.count) end = l.count;
    return end - begin;
}

/* Lane `i` of `lanes`. `send_chunks`, `recv_partials` and `recv_results` are how many chunks of each kind its buffers
 * hold. */
template <typename T, typename P>
RR_FN void rr_cut_lanes(const rr_ctx &c, rr_lane *lane, uint32_t lanes, uint32_t send_partials, uint32_t send_results,
                        uint32_t recv_partials, uint32_t recv_results) {
    uint64_t first = lanes == 1 ? c.op->count : rr_round_up((c.op->count + 1) / 2, 16 / sizeof(T));
    if (first > c.op->count) first = c.op->count;
    uint64_t send = rr_send_offset(c), recv = rr_recv_offset(c);
    for (uint32_t i = 0; i < lanes; i++) {
        lane[i].at = i ? first : 0;
        lane[i].count = i ? c.op->count - first : first;
        lane[i].each = rr_chunk_count(lane[i].count, c.op->world, c.op->dtype);
        lane[i].send = send;
        lane[i].recv = recv;
        send += lane[i].each * (send_partials * sizeof(P) + send_results * sizeof(T));
        recv += lane[i].each * (recv_partials * sizeof(P) + recv_results * sizeof(T));
    }
}

RR_FN rr_expect rr_expect_from(uint32_t src, uint32_t phase, uint64_t bytes) {
    rr_expect e = {1u << src, phase, bytes, 0};
    return e;
}

/* ------------------------------------------------------------------ ring */

template <typename T, typename P>
RR_FN void rr_ring_publish(rr_ctx &c, const rr_lane *lane, uint32_t lanes, uint32_t step) {
    uint32_t world = c.op->world;
    bool gathering = step >= world - 1;
    uint32_t t = gathering ? step - (world - 1) : step;
    for (uint32_t i = 0; i < lanes; i++) {
        const rr_lane &l = lane[i];
        uint64_t partial = l.each * sizeof(P), result = l.each * sizeof(T), partials = (world - 1) * partial;
        uint32_t chunk = (l.place + (gathering ? world + 1 : world) - t) % world;
        uint64_t src = !gathering ? l.send + t * partial
                       : t == 0   ? l.send + partials
                                  : l.recv + partials + (t - 1) * result;
        uint64_t dst = !gathering ? l.recv + t * partial : l.recv + partials + t * result;
        uint64_t bytes = rr_lane_count(l, chunk, 1) * (gathering ? sizeof(T) : sizeof(P));
        rr_put(c, l.phase + step, l.to, src, dst, bytes);
    }
    rr_publish(c);
}

/* Chunk that arrives in `step`. */
RR_FN uint32_t rr_ring_chunk(const rr_ctx &c, const rr_lane &l, uint32_t step) {
    uint32_t world = c.op->world;
    bool gathering = step >= world - 1;
    uint32_t t = gathering ? step - (world - 1) : step;
    return (l.place + world - t + (gathering ? 0 : world - 1)) % world;
}

template <typename T, typename P>
RR_FN bool rr_ring_wait(rr_ctx &c, const rr_lane *lane, uint32_t lanes, uint32_t step) {
    uint64_t size = step >= c.op->world - 1 ? sizeof(T) : sizeof(P);
    rr_expect e[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    for (uint32_t i = 0; i < lanes; i++)
        e[i] = rr_expect_from(lane[i].from, lane[i].phase + step,
                              rr_lane_count(lane[i], rr_ring_chunk(c, lane[i], step), 1) * size);
    return rr_wait2(c, e[0], e[1]);
}

template <typename T, typename P> RR_FN void rr_ring_run(rr_ctx &c, uint32_t lanes) {
    const uint32_t N = rr_tile_of<T>::count;
    uint32_t world = c.op->world, position;
    if (!rr_begin(c)) return;
    rr_lane lane[2];
    rr_cut_lanes<T, P>(c, lane, lanes, world - 1, 1, world - 1, world - 1);
    position = rr_my_position(c);
    for (uint32_t i = 0; i < lanes; i++) {
        uint32_t next = c.op->order[(position + 1) % world], prev = c.op->order[(position + world - 1) % world];
        lane[i].place = i ? (world - position) % world : position;
        lane[i].to = i ? prev : next;
        lane[i].from = i ? next : prev;
        /* In a world of two both lanes come from the same peer: different phases keep their flags apart. */
        lane[i].phase = i && world == 2 ? 2 : 0;
        uint64_t from = lane[i].place * lane[i].each;
        P *to = (P *)(rr_data(c) + lane[i].send);
        RR_FOR_TILES(c, T, rr_lane_count(lane[i], lane[i].place, 1), begin, n) {
            float v[N];
            rr_load_in<T>(c, lane[i].at + from + begin, v, (uint32_t)n);
            rr_store_tile(to + begin, v, (uint32_t)n);
        }
    }
    for (uint32_t step = 0; step < 2 * (world - 1); step++) {
        if (!rr_meet(c)) break;
        rr_ring_publish<T, P>(c, lane, lanes, step);
        if (!rr_ring_wait<T, P>(c, lane, lanes, step)) break;
        for (uint32_t i = 0; i < lanes; i++) {
            const rr_lane &l = lane[i];
            uint32_t chunk = rr_ring_chunk(c, l, step);
            uint64_t partial = l.each * sizeof(P), partials = (world - 1) * partial, at = l.at + chunk * l.each;
            if (step >= world - 1) {
                uint64_t from = l.recv + partials + (step - (world - 1)) * l.each * sizeof(T);
                rr_copy(c, (uint8_t *)c.op->out + at * sizeof(T), rr_data(c) + from,
                        rr_lane_count(l, chunk, 1) * sizeof(T));
                continue;
            }
            const P *from = (const P *)(rr_data(c) + l.recv + step * partial);
            P *to = (P *)(rr_data(c) + l.send + (step + 1) * partial);
            T *result = (T *)(rr_data(c) + l.send + partials);
            RR_FOR_TILES(c, T, rr_lane_count(l, chunk, 1), begin, n) {
                float v[N], own[N];
                rr_load_tile(v, from + begin, (uint32_t)n);
                rr_load_in<T>(c, at + begin, own, (uint32_t)n);
                for (uint32_t k = 0; k < N; k++) v[k] += own[k];
                if (step < world - 2) {
                    rr_store_tile(to + begin, v, (uint32_t)n);
                } else {
                    rr_store_tile(result + begin, v, (uint32_t)n);
                    rr_store_out<T>(c, at + begin, v, (uint32_t)n);
                }
            }
        }
    }
    rr_end(c);
}

/* ------------------------------------------------------------------ halving */

/* Partner of ring position `p` along dimension i. 1 and 3 are the two neighbours in a ring of four; in larger worlds
 * the other dimensions need forwarding. Independent as bit vectors, so they reach every position. */
RR_FN uint32_t rr_dimension(uint32_t i) { return i == 1 ? 3 : 1u << i; }

/* Bit i: which side of dimension i position `p` is on. Solves p = xor of the dimensions with a set bit. */
RR_FN uint32_t rr_coordinate(uint32_t p, uint32_t dimensions) { return dimensions < 2 ? p : p ^ (p >> 1 & 1); }

/* Lane 0 walks the dimensions upwards, lane 1 downwards. */
RR_FN uint32_t rr_dimension_of_step(uint32_t lane, uint32_t step, uint32_t dimensions) {
    return lane ? dimensions - 1 - step : step;
}

template <typename T, typename P> RR_FN void rr_halving_run(rr_ctx &c) {
    const uint32_t N = rr_tile_of<T>::count;
    uint32_t world = c.op->world, dimensions = rr_log2_ceil(world);
    if (!rr_begin(c)) return;
    rr_lane lane[2];
    rr_cut_lanes<T, P>(c, lane, 2, world, 0, world - 1, world);
    uint32_t position = rr_my_position(c), side = rr_coordinate(position, dimensions), low[2] = {0, 0};
    for (uint32_t i = 0; i < 2; i++) {
        lane[i].phase = i * 2 * dimensions;
        lane[i].place = 0;
        for (uint32_t s = 0; s < dimensions; s++)
            lane[i].place |= (side >> rr_dimension_of_step(i, s, dimensions) & 1) << (dimensions - 1 - s);
        P *to = (P *)(rr_data(c) + lane[i].send);
        RR_FOR_TILES(c, T, lane[i].count, begin, n) {
            float v[N];
            rr_load_in<T>(c, lane[i].at + begin, v, (uint32_t)n);
            rr_store_tile(to + begin, v, (uint32_t)n);
        }
    }
    for (uint32_t step = 0; step < 2 * dimensions; step++) {
        if (!rr_meet(c)) break;
        bool gathering = step >= dimensions;
        uint32_t s = gathering ? 2 * dimensions - 1 - step : step, half = world >> (s + 1);
        rr_expect e[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        for (uint32_t i = 0; i < 2; i++) {
            rr_lane &l = lane[i];
            uint32_t keep = l.place >> (dimensions - 1 - s) & 1;
            uint32_t peer = c.op->order[position ^ rr_dimension(rr_dimension_of_step(i, s, dimensions))];
            uint32_t mine = gathering ? low[i] : low[i] + keep * half,
                     theirs = gathering ? low[i] ^ half : low[i] + (1 - keep) * half;
            uint64_t partials = (world - 1) * l.each * sizeof(P), src, dst, size = gathering ? sizeof(T) : sizeof(P);
            uint32_t sent = gathering ? mine : theirs, got = gathering ? theirs : mine;
            if (gathering) {
                src = dst = l.recv + partials + mine * l.each * sizeof(T);
            } else {
                src = l.send + theirs * l.each * sizeof(P);
                dst = l.recv + (world - (world >> s)) * l.each * sizeof(P);
            }
            rr_put(c, l.phase + step, peer, src, dst, rr_lane_count(l, sent, half) * size);
            e[i] = rr_expect_from(peer, l.phase + step, rr_lane_count(l, got, half) * size);
        }
        rr_publish(c);
        if (!rr_wait2(c, e[0], e[1])) break;
        for (uint32_t i = 0; i < 2; i++) {
            rr_lane &l = lane[i];
            uint32_t keep = l.place >> (dimensions - 1 - s) & 1;
            uint64_t partials = (world - 1) * l.each * sizeof(P);
            T *results = (T *)(rr_data(c) + l.recv + partials);
            if (gathering) {
                uint64_t first = (uint64_t)(low[i] ^ half) * l.each;
                rr_copy(c, (uint8_t *)c.op->out + (l.at + first) * sizeof(T), results + first,
                        rr_lane_count(l, low[i] ^ half, half) * sizeof(T));
                low[i] &= ~half;
                continue;
            }
            low[i] += keep * half;
            uint64_t first = (uint64_t)low[i] * l.each;
            P *work = (P *)(rr_data(c) + l.send) + first;
            const P *from = (const P *)(rr_data(c) + l.recv + (world - (world >> s)) * l.each * sizeof(P));
            RR_FOR_TILES(c, T, rr_lane_count(l, low[i], half), begin, n) {
                float v[N];
                rr_load_tile(v, work + begin, (uint32_t)n);
                rr_add_tile(v, from + begin, (uint32_t)n);
                if (s + 1 < dimensions) {
                    rr_store_tile(work + begin, v, (uint32_t)n);
                } else {
                    rr_store_tile(results + first + begin, v, (uint32_t)n);
                    rr_store_out<T>(c, l.at + first + begin, v, (uint32_t)n);
                }
            }
        }
    }
    rr_end(c);
}

#endif
